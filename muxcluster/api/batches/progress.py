"""How far a batch is, and when it should end."""

import time
from dataclasses import dataclass, field

from muxcluster.api.batches.answering import Use


@dataclass(slots=True)
class Progress:
    """Of one run of a batch. weights: tokens that its lines may come to, guessed alike for all.

    A batch that went on after a restart is measured from there.
    """

    num_total: int
    num_ended: int
    weight_left: int
    weight_done: int = 0
    use: Use = field(default_factory=Use)
    started_s: float = field(default_factory=time.monotonic)

    def end(self, weight: int, use: Use) -> None:
        """One more line has ended."""
        self.num_ended += 1
        self.weight_left -= weight
        self.weight_done += weight
        self.use += use

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.started_s

    def left_s(self) -> float | None:
        """Seconds until the last line should end at the speed so far; None before the first."""
        if not self.weight_done:
            return None
        return self.elapsed_s * self.weight_left / self.weight_done
