"""What a request is suspected of after a failed job; faults.py has the rules."""

from dataclasses import dataclass

from muxcluster.core.job import Phase

MAX_LONE_FAILURES = 2

# Suspects of a decode job of at most so many rows run one by one; those of a larger one in halves.
# One by one finds the guilty with the fewest kills; halves clear 64 innocents in 2 steps.
MAX_ROWS_ONE_BY_ONE = 8


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspect is cleared by a job of `phase` that ends with its first `end` tokens computed.

    Where it failed in a decode step, only a decode step clears it: the tokens of a row whose memory
    is lost are computed again as a prompt, in the lane "mixed" in jobs of the same phase.
    """

    phase: Phase
    is_decoding: bool
    end: int
    num_lone_failures: int  # failed jobs in a row that this request alone can have failed
    num_rows: int  # of the job that failed

    @property
    def is_proven(self) -> bool:
        """True where the request fails whenever it runs alone."""
        return self.num_lone_failures >= MAX_LONE_FAILURES

    @property
    def most_rows(self) -> int:
        """Rows, all of them suspects, that its next decode job may have."""
        return self.num_rows // 2 if self.num_rows > MAX_ROWS_ONE_BY_ONE else 1

    def is_refuted(self, phase: Phase, num_computed: int, *, is_decoding: bool) -> bool:
        """True where a job of `phase` that ended with `num_computed` tokens clears the suspect.

        is_decoding: it decoded in the job.
        """
        is_alike = phase is self.phase and (is_decoding or not self.is_decoding)
        return is_alike and num_computed >= self.end


def suspicion(
    before: Suspicion | None,
    phase: Phase,
    end: int,
    num_rows: int,
    *,
    is_decoding: bool,
    is_certain: bool,
) -> Suspicion:
    """Return the suspicion after a failed job in which the request was to compute `end` tokens.

    before: what it was suspected of. num_rows: of the job. is_decoding: it decoded there.
    is_certain: nothing but the rows of the job can have failed it.
    """
    num_lone = 0 if before is None else before.num_lone_failures
    return Suspicion(phase, is_decoding, end, num_lone + (is_certain and num_rows == 1), num_rows)
