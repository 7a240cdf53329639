"""Executor of a CPU unit over several ranks whose workers are groups of processes, one a rank."""

import logging
import selectors
import time
from collections.abc import Sequence
from contextlib import ExitStack

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, Outcome, StillRunning
from muxcluster.engine.parallel.answers import MemoryDiffers, OutOfStep
from muxcluster.engine.parallel.open_jobs import UnitJobs
from muxcluster.engine.parallel.rank_link import RankLost
from muxcluster.engine.parallel.rank_owners import RankOwnerLink, RankOwners
from muxcluster.engine.parallel.worker_group import WorkerGroup
from muxcluster.engine.processes.admissions import AdmissionLedger
from muxcluster.engine.processes.child_executor import ChildExecutor
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.worker_link import WorkerLink

logger = logging.getLogger(__name__)

_GroupLink = tuple[WorkerGroup, int]  # a worker and one of its ranks


class GroupExecutor(ChildExecutor):
    """Executor with one owner a rank, which forks the rank's process of every worker.

    A worker that is lost on one rank is replaced on all, while other workers go on with their jobs.
    An owner that is lost is the loss of all: its part of the models and of the pool is gone.
    """

    def __init__(self, spec: UnitSpec, patience: Patience | None = None) -> None:
        super().__init__(spec, patience)
        self._owners: RankOwners | None = None
        self._groups: dict[int, WorkerGroup] = {}
        self._worker_ids = [worker.worker_id for worker in spec.workers]
        self._jobs = UnitJobs(self._worker_ids, spec.tp)
        self._ledger = AdmissionLedger.of(spec, self._worker_ids)

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Process ids of the ranks' owners, in order."""
        assert self._owners is not None, "not started"
        return tuple(link.pid for link in self._owners.links)

    def launch(self, job: Job) -> None:
        self._jobs.add(job)
        whole = self._ledger.complete(job, job.worker_id)
        self._groups[job.worker_id].launch(whole, time.monotonic())

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = self._speaking(timeout_s)
        outcomes: list[Outcome] = []
        try:
            # Answers first: those jobs have ended, whatever was lost since.
            for link in ready:
                if isinstance(link, tuple):
                    outcomes.extend(self._take(*link))
            for link in ready:
                if isinstance(link, RankOwnerLink):
                    raise RankLost(f"rank {link.rank} died")
            if self._is_beat_due():
                outcomes.extend(self._beat())
        except (RankLost, MemoryDiffers) as loss:
            message = f"the ranks of {self._spec.unit_id} are lost: {loss}"
            return [*outcomes, self._lose_all(message)]
        return outcomes

    def _make_processes(self) -> None:
        self._owners = RankOwners(self._spec, self._patience)
        try:
            self.backends = self._owners.load()
        except BaseException:
            self._owners.kill()  # some may wait for others inside a collective
            raise
        self._jobs = UnitJobs(self._worker_ids, self._spec.tp)
        self._ledger = AdmissionLedger.of(self._spec, self._worker_ids)
        for owner in self._owners.links:
            self._selector.register(owner, selectors.EVENT_READ, owner)
        try:
            for worker_id in self._worker_ids:
                self._fork(worker_id)
        except RankLost as loss:
            raise EngineFailure(f"{self._spec.unit_id} cannot start: {loss}") from loss

    def _fork(self, worker_id: int) -> None:
        """Make the worker's processes on all ranks; earlier ones are killed. Raises RankLost."""
        assert self._owners is not None, "a worker without an owner"
        with ExitStack() as undo:
            made = []
            for owner in self._owners.links:
                made.append(owner.fork(worker_id))
                undo.callback(made[-1][0].close)
            undo.pop_all()
        start_by_s = time.monotonic() + self._patience.start_s
        links = [WorkerLink(worker_id, *each, self._limits, start_by_s) for each in made]
        self._ledger.forget_worker(worker_id)
        jobs = self._jobs.of(worker_id)
        group = WorkerGroup(worker_id, links, jobs, self._patience.silence_s)
        self._groups[worker_id] = group
        for rank, link in enumerate(links):
            self._selector.register(link.frames, selectors.EVENT_READ, (group, rank))

    def _take(self, group: WorkerGroup, rank: int) -> Sequence[Outcome]:
        if self._groups.get(group.worker_id) is not group:
            return ()  # replaced since it spoke
        try:
            outcomes = group.take(rank, time.monotonic())
        except OutOfStep as reason:
            return self._replace(group, str(reason))
        if outcomes is None:
            return self._replace(group, f"its process on rank {rank} died")
        if not outcomes:
            self._is_doubtful = self._has_doubts()
        if any(isinstance(outcome, JobDone) for outcome in outcomes):
            self._losses.job_finished()
        return outcomes

    def _has_doubts(self) -> bool:
        assert self._owners is not None, "not started"
        groups = self._groups.values()
        is_starting = not all(group.is_serving for group in groups)
        return is_starting or self._owners.is_doubtful or any(each.is_doubtful for each in groups)

    def _beat(self) -> Sequence[Outcome]:
        """Take every pulse, replace workers that hang. Raises RankLost if an owner was stopped."""
        assert self._owners is not None, "not started"
        self._owners.beat()
        outcomes: list[Outcome] = []
        for group in list(self._groups.values()):
            cause = group.check(time.monotonic())
            if cause is not None:
                outcomes.extend(self._replace(group, cause))
        self._is_doubtful = self._has_doubts()
        if self._jobs and all(group.shows_work for group in self._groups.values()):
            outcomes.append(StillRunning())
        return outcomes

    def _replace(self, group: WorkerGroup, cause: str) -> Sequence[Outcome]:
        """Replace a lost worker on all ranks: when this returns, none of its processes is left.

        The unit is recovering until the new ones have started. Raises RankLost.
        """
        logger.warning("worker %d of %s: %s", group.worker_id, self._spec.unit_id, cause)
        self._is_doubtful = True
        self._drop(group)
        self._losses.worker_lost(group.worker_id, group.num_rows, time.monotonic())
        failed = group.lose(cause)
        self._fork(group.worker_id)
        return failed

    def _kill_processes(self) -> None:
        owners = self._owners
        if owners is not None:
            owners.kill()

    def _drop_processes(self) -> None:
        for group in list(self._groups.values()):
            self._drop(group)
        if self._owners is None:
            return
        for owner in self._owners.links:
            if owner in self._selector.get_map():
                self._selector.unregister(owner)
        self._owners.stop()
        self._owners = None

    def _drop(self, group: WorkerGroup) -> None:
        del self._groups[group.worker_id]
        for link in group.links:
            self._selector.unregister(link.frames)
            link.frames.close()
