"""How far a batch is, and when it should end."""

import time
from dataclasses import dataclass, field

from muxcluster.api.batches.answering import Use


@dataclass(slots=True)
class Progress:
    """Of one run of a batch. weights: tokens that its lines may come to, guessed alike for all.
    under_way: those that running lines have come to, by line. last_s: when the last line so far
    ended, on the clock of `started_s`.

    A batch that went on after a restart is measured from there.
    """

    num_total: int
    num_ended: int
    weight_left: int
    weight_done: int = 0
    use: Use = field(default_factory=Use)
    started_s: float = field(default_factory=time.monotonic)
    last_s: float | None = None
    under_way: dict[int, int] = field(default_factory=dict)

    def advance(self, line: int, weight: int) -> None:
        """A running line has come to `weight` tokens so far."""
        self.under_way[line] = weight

    def end(self, line: int, weight: int, use: Use) -> None:
        """One more line has ended."""
        self.under_way.pop(line, None)
        self.num_ended += 1
        self.weight_left -= weight
        self.weight_done += weight
        self.use += use
        self.last_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """From the start of the run to now, or to its last line."""
        now_s = self.last_s if self.last_s is not None and self._is_over else time.monotonic()
        return now_s - self.started_s

    @property
    def _is_over(self) -> bool:
        return self.num_ended == self.num_total

    def left_s(self) -> float | None:
        """Seconds until the last line should end at the speed so far; None before the first token.

        What runs counts: lines that start together end together, and in between none does.
        """
        under_way = sum(self.under_way.values())
        weight_done = self.weight_done + under_way
        if not weight_done:
            return None
        return self.elapsed_s * max(0, self.weight_left - under_way) / weight_done
