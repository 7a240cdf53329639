"""What a request is suspected of after a failed job; faults/isolation.py has the rules."""

from dataclasses import dataclass

from muxcluster.core.job import Phase

MAX_LONE_FAILURES = 2


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspect is cleared by a job of `phase` that ends with its first `end` tokens computed."""

    phase: Phase
    end: int
    num_lone_failures: int  # failed jobs in a row that this request alone can have failed

    @property
    def is_proven(self) -> bool:
        """True where the request fails whenever it runs alone."""
        return self.num_lone_failures >= MAX_LONE_FAILURES

    def is_refuted(self, phase: Phase, num_computed: int) -> bool:
        """True where a job of `phase` that ended with `num_computed` tokens clears the suspect."""
        return phase is self.phase and num_computed >= self.end


def suspicion(before: Suspicion | None, phase: Phase, end: int, *, was_alone: bool) -> Suspicion:
    """Return the suspicion after a failed job in which the request was to compute `end` tokens.

    before: what it was suspected of. was_alone: nothing else ran that can have failed the job.
    """
    num_lone = 0 if before is None else before.num_lone_failures
    return Suspicion(phase, end, num_lone + was_alone)
