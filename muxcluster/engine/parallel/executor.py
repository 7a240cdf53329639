"""Executor of a unit whose models are divided over GPUs: one process per GPU.

Every rank gets every job, and each worker's jobs in one order. A lost rank loses all: its peers
wait for it inside a collective, and its part of the pool is gone.
"""

import selectors
import time
from collections.abc import Sequence

from muxcluster.channel.codec import Done
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, Outcome, StillRunning
from muxcluster.engine.parallel.answers import MemoryDiffers, OutOfStep
from muxcluster.engine.parallel.open_jobs import UnitJobs
from muxcluster.engine.parallel.rank_link import RankLink, RankLost
from muxcluster.engine.parallel.team import RankTeam
from muxcluster.engine.processes.child_executor import ChildExecutor
from muxcluster.engine.processes.liveness import Patience


class RanksExecutor(ChildExecutor):
    """Executor of `spec.tp` ranks; if one is lost all are ended, and the unit starts them again.

    Lost means dead, hung, or out of step with the others. The unit's workers are threads of each
    rank, so they are lost together; jobs that all ranks have answered by then have ended.
    """

    def __init__(self, spec: UnitSpec, patience: Patience | None = None) -> None:
        super().__init__(spec, patience)
        self._team: RankTeam | None = None
        self._worker_ids = [worker.worker_id for worker in spec.workers]
        self._jobs = UnitJobs(self._worker_ids, spec.tp)
        self._give_up_s: dict[int, float] = {}  # by worker: when its oldest job must have ended
        self._loss = ""

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Process ids of the ranks in order."""
        assert self._team is not None, "not started"
        return tuple(link.pid for link in self._team.links)

    def launch(self, job: Job) -> None:
        """Give every rank the job. `wait` reports a lost rank."""
        assert self._team is not None, "launch before start"
        self._jobs.add(job)
        if len(self._jobs.of(job.worker_id).jobs) == 1:
            self._begin(job, time.monotonic())
        try:
            for link in self._team.links:
                link.launch(job)
        except RankLost as loss:
            self._loss = str(loss)
            self._wakes.wake()

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = self._speaking(timeout_s)
        outcomes: list[Outcome] = []
        try:
            if self._loss:
                raise RankLost(self._loss)
            for link in ready:
                outcomes.extend(self._take(link))
            if self._is_beat_due():
                outcomes.extend(self._beat())
        except (RankLost, OutOfStep, MemoryDiffers) as loss:
            message = f"the ranks of {self._spec.unit_id} are lost: {loss}"
            return [*outcomes, self._lose_all(message)]
        return outcomes

    def _make_processes(self) -> None:
        self._team = RankTeam(self._spec, self._patience)
        try:
            self.backends = self._team.load()
        except BaseException:
            self._team.kill()  # some may wait for others inside a collective
            raise
        self._jobs = UnitJobs(self._worker_ids, self._spec.tp)
        self._give_up_s.clear()
        self._loss = ""
        for link in self._team.links:
            self._selector.register(link, selectors.EVENT_READ, link)

    def _kill_processes(self) -> None:
        team = self._team
        if team is not None:
            team.kill()

    def _begin(self, job: Job, now: float) -> None:
        self._give_up_s[job.worker_id] = now + self._limits.limit_s(job)

    def _take(self, link: RankLink) -> Sequence[Outcome]:
        """Take the rank's answer; return what ended. Raises RankLost, OutOfStep, MemoryDiffers."""
        answer, now = link.hear(), time.monotonic()
        job_id = answer.result.job_id if isinstance(answer, Done) else answer.job_id
        worker_id = self._jobs.worker_of(job_id)
        if worker_id is None:
            raise OutOfStep(f"rank {link.rank} answers for job {job_id}, which it does not have")
        jobs = self._jobs.of(worker_id)
        ended = jobs.take(link.rank, answer)
        for job, outcome in ended:
            if isinstance(outcome, JobDone):
                self._limits.measured(job, outcome.result.seconds)
                self._losses.job_finished()
        if ended and jobs.jobs:
            self._begin(jobs.jobs[0], now)
        if jobs.is_split:
            sooner = min(self._give_up_s[worker_id], now + self._patience.silence_s)
            self._give_up_s[worker_id] = sooner
        return [outcome for _, outcome in ended]

    def _beat(self) -> Sequence[Outcome]:
        """Take every pulse. Raises RankLost if a rank hangs, or a job does not end."""
        assert self._team is not None, "not started"
        self._team.beat()
        self._is_doubtful = self._team.is_doubtful
        if not self._jobs:
            return []
        now = time.monotonic()
        if any(now > self._give_up_s[job.worker_id] for job in self._jobs.oldest):
            raise RankLost("a job did not come to an end")
        return [StillRunning()] if self._team.shows_work else []

    def _drop_processes(self) -> None:
        if self._team is None:
            return
        for link in self._team.links:
            if link in self._selector.get_map():
                self._selector.unregister(link)
        self._team.stop()
        self._team = None
