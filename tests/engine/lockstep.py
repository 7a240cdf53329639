"""An executor whose steps end together and whose jobs take made-up times: every run is the same."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from muxcluster.core.job import Job
from muxcluster.engine.executor import Executor, JobDone, JobFailed, Outcome, OwnerLost
from tests.engine.fakes import PATIENCE_S

Script = Iterator[Callable[[], bool]]
"""What clients do, on the unit's thread: it goes on after each condition that it yields."""


class Lockstep:
    """Passes all on to an executor, and is the clock of the unit.

    `wait` ends when every running job has, and tells of them in the order of launch. Time is what
    jobs took by their numbers of tokens, so neither a slow machine nor a busy one changes what the
    scheduler decides. on_launch: told of each job just after its launch.
    """

    def __init__(
        self, executor: Executor, on_launch: Callable[[Job], None] = lambda job: None
    ) -> None:
        self._executor, self._on_launch = executor, on_launch
        self._running: dict[int, Job] = {}
        self._now_s = 0.0
        self._script: Script | None = None
        self._goes_on: Callable[[], bool] = lambda: True
        self._has_played = threading.Event()
        self._error: Exception | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._executor, name)

    def now(self) -> float:
        return self._now_s

    def play(self, script: Script) -> None:
        """Run the script of a started unit to its end, which must leave no request open."""
        self._script = script
        self._executor.wake()
        assert self._has_played.wait(PATIENCE_S), "the script did not come to its end"
        if self._error is not None:
            raise self._error

    def launch(self, job: Job) -> None:
        self._running[job.job_id] = job
        self._executor.launch(job)
        self._on_launch(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        has_acted = self._act()
        if self._running:
            return self._ends()
        if has_acted:
            return []
        if self._script is None or timeout_s is None:
            return self._executor.wait(timeout_s)
        self._now_s += timeout_s
        return []

    def _act(self) -> bool:
        """Go on with the script as far as it will; True where it did."""
        script, has_acted = self._script, False
        if script is None:
            return False
        try:
            while self._goes_on():
                has_acted = True
                self._goes_on = next(script)
        except StopIteration:
            self._script = None
            self._has_played.set()
        except Exception as error:
            self._error = error
            self._has_played.set()
            raise
        return has_acted

    def _ends(self) -> Sequence[Outcome]:
        ends: dict[int, JobDone | JobFailed] = {}
        while ends.keys() != self._running.keys():
            for outcome in self._executor.wait(None):
                if isinstance(outcome, OwnerLost):
                    self._running.clear()
                    return [outcome]
                if isinstance(outcome, JobDone | JobFailed):
                    ends[_job_id(outcome)] = outcome
        jobs, self._running = self._running, {}
        self._now_s += max(map(_seconds, jobs.values()))
        return [_timed(ends[job_id], job) for job_id, job in jobs.items()]


def _seconds(job: Job) -> float:
    """20 ms and 1 ms a token on all the SMs."""
    return (0.02 + 0.001 * int(job.rows.counts.sum())) / job.share


def _job_id(outcome: JobDone | JobFailed) -> int:
    return outcome.result.job_id if isinstance(outcome, JobDone) else outcome.job_id


def _timed(outcome: JobDone | JobFailed, job: Job) -> Outcome:
    if isinstance(outcome, JobDone):
        return JobDone(replace(outcome.result, seconds=_seconds(job)))
    return outcome
