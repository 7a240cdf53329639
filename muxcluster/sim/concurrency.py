"""Jobs that run side by side on one mesh: a work clock that slows down for all of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muxcluster.core.job import Job
from muxcluster.sim.timing import Work

_EPSILON = 1e-9


@dataclass(slots=True, eq=False)
class Running:
    """A job on its way, in seconds of the work clock. num_steps: it will end after so many."""

    job: Job
    work: Work
    start_s: float
    begun: float
    num_steps: int

    @property
    def end(self) -> float:
        """When it ends, on the work clock."""
        return self.begun + self.num_steps * self.work.seconds


class Concurrency:
    """Running jobs of one unit; their work is conserved whatever joins or leaves.

    All of them are slowed by one factor, `slowdown` of what they draw, so a clock that runs
    1 / factor as fast as time tells the progress of each: a job ends when that clock has advanced
    by what it takes alone.
    """

    def __init__(self, slowdown: Callable[[Sequence[float]], float]) -> None:
        self._slowdown_of = slowdown
        self.running: list[Running] = []
        self._now_s = 0.0
        self._clock = 0.0
        self._slowdown = 1.0
        self._first: Running | None = None

    @property
    def next_end_s(self) -> float:
        """When the first job ends if nothing changes; inf where none runs."""
        if self._first is None:
            return float("inf")
        return self._now_s + max(0.0, self._first.end - self._clock) * self._slowdown

    def start(self, job: Job, work: Work, now: float) -> Running:
        """`job` runs from now on."""
        self._advance(now)
        entry = Running(job, work, now, self._clock, job.max_steps)
        self.running.append(entry)
        self._changed()
        return entry

    def finish(self, now: float) -> Running:
        """Take out the job whose end is next, which is at `now`."""
        entry = self._first
        assert entry is not None, "nothing runs"
        self._now_s, self._clock = now, max(self._clock, entry.end)
        self.running.remove(entry)
        self._changed()
        return entry

    def step_end(self, entry: Running) -> float:
        """When the step that a job is in ends, on the work clock of the last change."""
        return entry.begun + self._steps_begun(entry) * entry.work.seconds

    def cut(self, entry: Running, now: float) -> None:
        """End a job of several steps with the step that it is in."""
        self._advance(now)
        entry.num_steps = self._steps_begun(entry)
        self._find_first()

    def _steps_begun(self, entry: Running) -> int:
        done = (self._clock - entry.begun) / entry.work.seconds
        return min(entry.num_steps, max(1, math.ceil(done - _EPSILON)))

    def _advance(self, now: float) -> None:
        self._clock += (now - self._now_s) / self._slowdown
        self._now_s = now

    def _changed(self) -> None:
        self._slowdown = self._slowdown_of([entry.work.draw for entry in self.running])
        self._find_first()

    def _find_first(self) -> None:
        self._first = min(self.running, key=_end, default=None)


def _end(entry: Running) -> tuple[float, int]:
    return entry.end, entry.job.job_id
