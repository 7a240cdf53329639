"""Progress of a batch and its estimated time left."""

import time
from bisect import bisect_right
from dataclasses import dataclass, field

from muxcluster.batch.store.job import Use

# Last part of the time so far over which speed is measured: models get faster once their caches are
# warm, and interactive load changes. A smaller part would follow every long answer.
RECENT = 0.5
_MAX_MARKS = 128


class _Marks:
    """Work done by time: at most `_MAX_MARKS` moments, evenly spread."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._weights: list[int] = []
        self._step_s = 0.0

    def __len__(self) -> int:
        return len(self._times_s)

    def add(self, now_s: float, weight: int) -> None:
        """Add a moment; `now_s` never decreases."""
        if self._times_s and now_s == self._times_s[-1]:
            self._weights[-1] = weight
        elif not self._times_s or now_s >= self._times_s[-1] + self._step_s:
            self._times_s.append(now_s)
            self._weights.append(weight)
        if len(self._times_s) > _MAX_MARKS:
            self._step_s = 2 * (self._times_s[-1] - self._times_s[0]) / _MAX_MARKS
            del self._times_s[1::2], self._weights[1::2]

    def before(self, moment_s: float) -> tuple[float, int] | None:
        index = bisect_right(self._times_s, moment_s) - 1
        return None if index < 0 else (self._times_s[index], self._weights[index])


@dataclass(slots=True)
class Progress:
    """Progress of one run of a batch; after a restart a new run begins.

    Weights are numbers of tokens that lines may have, estimated in the same way for all.
    """

    num_total: int
    num_ended: int
    weight_left: int  # of the lines that have not ended
    weight_done: int = 0  # of the lines that ended in this run
    use: Use = field(default_factory=Use)
    started_s: float = field(default_factory=time.monotonic)
    last_s: float | None = None  # end of the last line so far, on the clock of `started_s`
    under_way: dict[int, int] = field(default_factory=dict)  # tokens so far of each running line
    weight_under_way: int = 0  # their sum
    marks: _Marks = field(default_factory=_Marks)  # work done by time

    def advance(self, line: int, weight: int) -> None:
        """Note that a running line has `weight` tokens so far."""
        self.weight_under_way += weight - self.under_way.get(line, 0)
        self.under_way[line] = weight
        self._mark(time.monotonic())

    def end(self, line: int, weight: int, use: Use) -> None:
        self.weight_under_way -= self.under_way.pop(line, 0)
        self.num_ended += 1
        self.weight_left -= weight
        self.weight_done += weight
        self.use += use
        self.last_s = time.monotonic()
        self._mark(self.last_s)

    def _mark(self, now_s: float) -> None:
        self.marks.add(now_s, self.weight_done + self.weight_under_way)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start of the run to now, or to the end of its last line."""
        now_s = self.last_s if self.last_s is not None and self._is_over else time.monotonic()
        return now_s - self.started_s

    @property
    def _is_over(self) -> bool:
        return self.num_ended == self.num_total

    def left_s(self) -> float | None:
        """Return the seconds left at the latest speed; None before the first token.

        Tokens of running lines count: lines that start together end together.
        """
        done = self.weight_done + self.weight_under_way
        if not done:
            return None
        elapsed_s = self.elapsed_s
        now_s = self.started_s + elapsed_s
        since_s, before = self.marks.before(now_s - RECENT * elapsed_s) or (self.started_s, 0)
        if done <= before:
            # a long stall, or a unit whose lines begin again
            since_s, before = self.started_s, 0
        left = max(0, self.weight_left - self.weight_under_way)
        return (now_s - since_s) * left / (done - before)
