"""Which request makes jobs fail: suspects run alone, so that the guilty one convicts itself.

A failed job (its worker died, hung or raised) says nothing about which of its rows is to blame, or
whether any is: workers are also killed by hand or for want of memory. So nobody is blamed for a
failure in company. Every row of the job becomes a suspect, and a suspect runs as the only row of
its jobs until it has got past the point where the job failed, in the phase in which it failed:

- An innocent gets past it in its first lone job (or the first after a stray kill), is cleared and
  runs in company again, with nothing held against it.
- The guilty one fails alone. After `MAX_LONE_FAILURES` lone failures without a success between it
  ends with an error, and none but itself was in those jobs. A request that runs alone from the
  start is refused at its second kill, one that starts in company at its third.
- A kill from outside ends no innocent unless it hits the same request's lone job twice in a row;
  while many requests run it makes them suspects at most, whatever the number of kills.

Whoever is suspected of a decode step computes its prompt anew, where that was lost, in company: a
prompt has run before, and after the loss of all memory hundreds of them would run one by one.

Where the memory's owner is lost, every running job is under suspicion. Until the suspects of such
a loss are cleared the unit runs one job at a time, so that a second loss has one possible cause.
"""

from dataclasses import dataclass

from muxcluster.core.job import Phase

MAX_LONE_FAILURES = 2


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a suspect has to show: a job of `phase` that ends with its first `end` tokens computed.

    num_lone_failures: failed jobs in a row that it alone can have failed.
    """

    phase: Phase
    end: int
    num_lone_failures: int

    @property
    def is_proven(self) -> bool:
        """True where the request fails whenever it runs alone."""
        return self.num_lone_failures >= MAX_LONE_FAILURES

    def is_refuted(self, phase: Phase, num_computed: int) -> bool:
        """True where a job of `phase` that ended with `num_computed` tokens clears the suspect."""
        return phase is self.phase and num_computed >= self.end


def suspicion(before: Suspicion | None, phase: Phase, end: int, *, was_alone: bool) -> Suspicion:
    """After a failed job in which the request was to compute its tokens up to `end`.

    before: what it was suspected of. was_alone: nothing else ran that can have failed the job.
    """
    num_lone = 0 if before is None else before.num_lone_failures
    return Suspicion(phase, end, num_lone + was_alone)
