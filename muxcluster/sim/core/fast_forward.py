"""Runs of decode steps that change no decision, with the times they would have one by one.

After a decode step in which no request ended, the scheduler mostly launches the same rows at the
same place. `scheduling.fast_forward` says how often it would; so many steps need no
scheduler. Each keeps its own duration and slowdown by its neighbours: nothing is approximated.
"""

from collections import deque

from muxcluster.scheduling.lanes.view import Repetition
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.core.concurrency import Concurrency, Repeated, Running
from muxcluster.sim.core.timing import Timing, Work

_MARGIN_S = 0.002  # stop a little before time alone may change a decision


class FastForward:
    """The repetitions under way in one unit."""

    def __init__(self, scheduler: UnitScheduler, jobs: Concurrency, timing: Timing) -> None:
        self._scheduler = scheduler
        self._jobs = jobs
        self._timing = timing
        self._repeated: dict[Running, Repeated] = {}
        self._turns: deque[Repeated] = deque()
        self._before_s = 0.0
        self._lets_in = False

    def begin(self) -> None:
        """Look for repetitions after a call of `next_jobs`; the last ones have ended."""
        self._before_s = self._scheduler.undisturbed_until_s - _MARGIN_S
        self._lets_in = self._scheduler.lets_in
        first = self._jobs.first
        if first is None or self._before_s < self._jobs.next_end_s:
            return
        lefts = self._scheduler.repeats(first.job)
        if not lefts:
            return
        running = {entry.job: entry for entry in self._jobs.running}
        for job, left in lefts.items():
            work_after = self._timing.repeated(job)
            entry = running.get(job) or Running(job, work_after(0), 0.0, 0.0, 1)
            self._repeated[entry] = repeated = Repeated(entry, left, work_after)
            if job not in running:
                self._turns.append(repeated)

    def lets_in(self, now: float) -> bool:
        """Return True where a request that comes at `now` only waits and repetitions go on.

        Nothing else may have happened since `begin`.
        """
        return self._lets_in and now < self._before_s

    def advance(self, until_s: float) -> bool:
        """Run steps that end before `until_s`; return True if nothing else is to do before."""
        if not self._repeated:
            return False
        before_s = min(until_s, self._before_s)
        return self._jobs.repeat(self._repeated, self._turns, before_s) and before_s == until_s

    def end(self, now: float) -> list[tuple[Running, Running, float]]:
        """Report to the scheduler what ran.

        Returns (ran, running, end_s) in the order of ends: a job of several steps, the job that has
        its place then (where models take turns, the next one to report), and when it ended.
        """
        if not self._repeated:
            return []
        changed = [each for each in self._repeated.values() if each.count or each.order >= 0]
        has_turns = len(self._turns) > 0
        self._repeated.clear()
        self._turns.clear()
        if not changed:
            return []
        done = sorted((each for each in changed if each.count), key=lambda each: each.end_s)
        before = [_ran(each) for each in done]
        ends_s = [each.end_s for each in done]
        now_running = set(self._jobs.running)
        repetitions = [_repetition(each, each.entry in now_running) for each in changed]
        again = self._scheduler.repeat(repetitions, now)
        self._jobs.replace({each.entry: job for each, job in zip(changed, again, strict=True)})
        if has_turns:
            following = [each.entry for each in done[1:]] + self._jobs.running
            return list(zip(before, following, ends_s, strict=True))
        return list(zip(before, (each.entry for each in done), ends_s, strict=True))


def _repetition(each: Repeated, is_running: bool) -> Repetition:
    entry = each.entry
    return Repetition(
        entry.job, each.count, each.order, entry.start_s, each.end_s, each.running_s, is_running
    )


def _ran(each: Repeated) -> Running:
    mean = Work(each.alone_s / each.count, each.entry.work.draw)
    return Running(each.entry.job, mean, each.begun_s, each.entry.begun, each.count)
