"""Jobs that run side by side on one mesh, timed by a work clock that slows down for all of them."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.core.job import Job
from muxcluster.sim.core.timing import Work

_EPSILON = 1e-9


class Running:
    """A running job, in seconds of the work clock.

    num_steps: after which it ends. begun, end: on the work clock.
    """

    __slots__ = ("begun", "end", "job", "num_steps", "start_s", "work")

    def __init__(self, job: Job, work: Work, start_s: float, begun: float, num_steps: int) -> None:
        self.job = job
        self.num_steps = num_steps
        self.start(work, start_s, begun)

    def start(self, work: Work, start_s: float, begun: float) -> None:
        """Start the job, or start it again; each step takes `work`."""
        self.work, self.start_s, self.begun = work, start_s, begun
        self.end = begun + self.num_steps * work.seconds


@dataclass(slots=True, eq=False)
class Repeated:
    """A decode job that is launched again at its ends."""

    entry: Running
    left: int  # how often it may still end
    work_after: Callable[[int], Work]  # its work after so many ends
    begun_s: float = math.inf  # start of the first job that ended
    end_s: float = 0.0  # end of the last job that ended
    count: int = 0  # ends so far
    order: int = -1  # number of its last launch among those of all jobs; -1: none
    running_s: float = 0.0  # of the jobs that ended
    alone_s: float = 0.0  # of the same without neighbours

    def end(self, now: float) -> None:
        entry = self.entry
        self.left -= 1
        self.count += 1
        self.begun_s = min(self.begun_s, entry.start_s)
        self.end_s = now
        self.running_s += now - entry.start_s
        self.alone_s += entry.work.seconds

    def start(self, now: float, clock: float, order: int) -> None:
        """Start the job again."""
        self.order = order
        self.entry.start(self.work_after(self.count), now, clock)


class Concurrency:
    """Running jobs of one unit; work is conserved when others join or leave.

    All of them are slowed by one factor, `slowdown` of what they draw, so one clock that runs
    1 / factor as fast as time measures the progress of each: a job ends when that clock has
    advanced by the seconds that the job takes alone.
    """

    def __init__(self, slowdown: Callable[[Sequence[float]], float]) -> None:
        self._slowdown_of = slowdown
        self.running: list[Running] = []
        self._now_s = 0.0
        self._clock = 0.0
        self._slowdown = 1.0
        self.first: Running | None = None  # ends next if nothing changes
        self._num_repeated = 0

    @property
    def next_end_s(self) -> float:
        """Return when the first job ends if nothing changes; inf where none runs."""
        if self.first is None:
            return float("inf")
        return self._now_s + max(0.0, self.first.end - self._clock) * self._slowdown

    def start(self, job: Job, work: Work, now: float) -> Running:
        self._advance(now)
        entry = Running(job, work, now, self._clock, job.max_steps)
        self.running.append(entry)
        self._changed()
        return entry

    def finish(self, now: float) -> Running:
        """Remove the job that ends next, at `now`."""
        entry = self.first
        assert entry is not None, "nothing runs"
        self._now_s, self._clock = now, max(self._clock, entry.end)
        self.running.remove(entry)
        self._changed()
        return entry

    def repeat(
        self, repeated: Mapping[Running, Repeated], turns: deque[Repeated], before_s: float
    ) -> bool:
        """Start jobs again at their ends, as `finish` and `start` would, up to `before_s`.

        turns: jobs that start in place of the one that ended, the next one first; empty: itself.
        Returns False where something else comes first: the end of another job or of one that may
        not be repeated again, or two ends so near that they may coincide.
        """
        while (entry := self.first) is not None:
            if len(self.running) == 1 and not turns and entry in repeated:
                self._repeat_alone(repeated[entry], before_s)
            now = self.next_end_s
            if now >= before_s:
                return True
            again = repeated.get(entry)
            if again is None or not again.left or self._is_tied(entry):
                return False
            self._now_s, self._clock = now, max(self._clock, entry.end)
            again.end(now)
            turns.append(again)
            follower = turns.popleft()
            follower.start(now, self._clock, self._num_repeated)
            self._num_repeated += 1
            if len(self.running) > 1 or follower is not again:
                self.running.remove(entry)
                self.running.append(follower.entry)
                self._changed()
        return False

    def _repeat_alone(self, again: Repeated, before_s: float) -> None:
        """Do the same for a job without neighbours: most steps of most units."""
        entry, now, clock, slowdown = again.entry, self._now_s, self._clock, self._slowdown
        end, seconds, start_s = entry.end, entry.work.seconds, entry.start_s
        begun_s, count, last = min(again.begun_s, start_s), again.count, again.count + again.left
        work = entry.work
        while count < last:
            ended_s = now + max(0.0, end - clock) * slowdown
            if ended_s >= before_s:
                break
            again.running_s += ended_s - start_s
            again.alone_s += seconds
            now, clock, start_s = ended_s, max(clock, end), ended_s
            count += 1
            work = again.work_after(count)
            seconds = work.seconds
            end = clock + seconds
        num_ended = count - again.count
        if num_ended:
            again.count, again.left, again.begun_s, again.end_s = count, last - count, begun_s, now
            self._num_repeated += num_ended
            again.order = self._num_repeated - 1
            entry.start(work, start_s, clock)
            self._now_s, self._clock = now, clock

    def replace(self, jobs: Mapping[Running, Job]) -> None:
        """Replace repeated jobs by their successors; count the next launches from 0."""
        for entry, job in jobs.items():
            entry.job = job
        self._num_repeated = 0
        self._find_first()

    def _is_tied(self, entry: Running) -> bool:
        latest = entry.end + _EPSILON
        return any(each.end <= latest and each is not entry for each in self.running)

    def _advance(self, now: float) -> None:
        self._clock += (now - self._now_s) / self._slowdown
        self._now_s = now

    def _changed(self) -> None:
        self._slowdown = self._slowdown_of([entry.work.draw for entry in self.running])
        self._find_first()

    def _find_first(self) -> None:
        first: Running | None = None
        for each in self.running:
            if first is None or each.end < first.end or _is_tied_before(each, first):
                first = each
        self.first = first


def _is_tied_before(entry: Running, other: Running) -> bool:
    return entry.end == other.end and entry.job.job_id < other.job.job_id
