"""Runs of decode steps that change no decision, at the times at which they would happen one by one.

After a decode step that ended nobody, the scheduler mostly launches the same rows at the same
place. `scheduling.repeating` tells how often it would; so many steps need no scheduler. Each keeps
its own duration and its own slowdown by the neighbours of that moment: nothing is approximated.
"""

from collections.abc import Callable, Sequence

from muxcluster.core.job import Job
from muxcluster.scheduling.repeating import Repetition
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.concurrency import Concurrency, Repeated, Running
from muxcluster.sim.timing import Timing, Work

_MARGIN_S = 0.002
"""Repeating stops a little before time alone may change a decision."""


class Repeating:
    """The repetitions under way in one unit."""

    def __init__(self, scheduler: UnitScheduler, jobs: Concurrency, timing: Timing) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._timing = timing
        self._repeated: dict[Running, Repeated] = {}
        self._before_s = 0.0

    def begin(self, launched: Sequence[Job]) -> None:
        """`next_jobs` has just answered `launched`; the last repetitions have ended."""
        self._before_s = self._scheduler.undisturbed_until_s - _MARGIN_S
        if self._before_s < self._jobs.next_end_s:
            return
        lefts = self._scheduler.repeats(launched)
        if not lefts:
            return
        for entry in self._jobs.running:
            if entry.job.job_id in lefts:
                left = lefts[entry.job.job_id]
                work_after: Callable[[int], Work] = self._timing.repeated(entry.job)
                self._repeated[entry] = Repeated(entry, left, work_after, entry.start_s)

    def advance(self, until_s: float) -> bool:
        """Steps that end before `until_s`. True where no more is to be done until then."""
        if not self._repeated:
            return False
        before_s = min(until_s, self._before_s)
        return self._jobs.repeat(self._repeated, before_s) and before_s == until_s

    def end(self) -> list[tuple[Running, Running]]:
        """Tell the scheduler what ran.

        Returns that as jobs of several steps, in the order of their ends, each with the job that
        started at its end and still runs.
        """
        done = [each for each in self._repeated.values() if each.count]
        self._repeated.clear()
        if not done:
            return []
        done.sort(key=lambda each: each.order)
        before = [_ran(each) for each in done]
        again = self._scheduler.repeat([_repetition(each) for each in done])
        self._jobs.replace({each.entry: job for each, job in zip(done, again, strict=True)})
        return [(ran, each.entry) for ran, each in zip(before, done, strict=True)]


def _repetition(each: Repeated) -> Repetition:
    entry = each.entry
    return Repetition(entry.job, each.count, each.order, entry.start_s, each.running_s)


def _ran(each: Repeated) -> Running:
    mean = Work(each.alone_s / each.count, each.entry.work.draw)
    return Running(each.entry.job, mean, each.begun_s, each.entry.begun, each.count)
