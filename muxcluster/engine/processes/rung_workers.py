"""The workers of one owner, one a rung: they get jobs, and are replaced when they are lost."""

import logging
import os
import selectors
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.processes.admissions import AdmissionLedger
from muxcluster.engine.processes.job_limits import JobLimits
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.losses import LossLedger
from muxcluster.engine.processes.rungs import RungPlan
from muxcluster.engine.processes.worker_link import WorkerLink

logger = logging.getLogger(__name__)


class ForksWorkers(Protocol):
    """An owner, as its workers' end in the unit needs it."""

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        """As `ForkStream.worker`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class WorkerCare:
    """What all workers of a unit have in common."""

    selector: selectors.BaseSelector
    patience: Patience
    limits: JobLimits
    losses: LossLedger


@dataclass(frozen=True, slots=True, eq=False)
class RungWorker:
    """A worker among its like: the data of its entry in the selector."""

    workers: "RungWorkers"
    worker: WorkerLink

    def hear(self) -> Sequence[Outcome]:
        """Take the worker's message, and replace it if it died; call it when it speaks."""
        return self.workers.hear(self.worker)


class RungWorkers:
    """One worker a rung, from their first forks to their end.

    Calls that may replace a worker raise an error of `GONE` if its owner is dead, and TimeoutError
    if it does not answer; then only `lose` or `drop` may follow.
    """

    def __init__(
        self, spec: UnitSpec, plan: RungPlan, owner: ForksWorkers, care: WorkerCare
    ) -> None:
        """spec: with the models that these workers run."""
        self._name = spec.unit_id
        self._plan = plan
        self._owner = owner
        self._care = care
        self._workers: dict[int, WorkerLink] = {}
        self._pids: dict[int, int] = {}
        self._ledger = AdmissionLedger.of(spec, [rung.rung_id for rung in plan.rungs])
        self._orphaned: list[JobFailed] = []

    @property
    def is_busy(self) -> bool:
        return any(worker.is_busy for worker in self._workers.values())

    @property
    def has_doubts(self) -> bool:
        """True while one of them starts, or is silent."""
        workers = self._workers.values()
        return any(not worker.is_serving or worker.pulse.is_doubtful for worker in workers)

    @property
    def is_working(self) -> bool:
        """True if there are jobs, and all workers with a job show signs of life."""
        busy = [worker for worker in self._workers.values() if worker.is_busy]
        return bool(busy) and not any(worker.pulse.has_missed for worker in busy)

    def start(self) -> None:
        """Request the first worker of every rung."""
        for rung in self._plan.rungs:
            self._fork(rung.rung_id)

    def launch(self, job: Job) -> None:
        """Give the job to the worker of its rung."""
        rung_id = self._plan.rung_of(job)
        self._workers[rung_id].launch(self._ledger.complete(job, rung_id), time.monotonic())

    def beat(self) -> Sequence[Outcome]:
        """Take every pulse, and replace workers that hang."""
        outcomes: list[Outcome] = []
        for worker in list(self._workers.values()):
            cause = worker.check(time.monotonic())
            if cause is not None:
                outcomes.extend(self._replace(worker, cause))
        return outcomes

    def kill(self) -> None:
        """Kill all workers, and wait until they are gone; `lose` must follow.

        For those whose owner is lost: it can neither kill nor reap them.
        """
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for worker in self._workers.values():
            worker.await_end()

    def lose(self, cause: str) -> Sequence[JobFailed]:
        """Let go of all workers, whose owner is lost; return their jobs as failed.

        None of them counts as started: they are not to blame.
        """
        failed = list(self._orphaned)
        for worker in self._workers.values():
            failed += worker.lose(cause)
        self.drop()
        return [JobFailed(each.job_id, each.worker_id, cause, has_started=False) for each in failed]

    def drop(self) -> None:
        """Close and unregister all streams, so that the workers end; idempotent."""
        for worker in list(self._workers.values()):
            self._drop(worker)
        self._orphaned.clear()
        self._pids.clear()

    def hear(self, worker: WorkerLink) -> Sequence[Outcome]:
        """As `RungWorker.hear`; nothing of a worker that was let go."""
        if self._workers.get(worker.worker_id) is not worker:
            return ()
        outcomes = worker.hear(time.monotonic())
        if outcomes is None:
            return self._replace(worker, "its worker process died")
        if any(isinstance(outcome, JobDone) for outcome in outcomes):
            self._care.losses.job_finished()
        return outcomes

    def _replace(self, worker: WorkerLink, cause: str) -> Sequence[Outcome]:
        """Replace a lost worker, which the owner kills if it still lives."""
        logger.warning("worker %d of %s: %s", worker.worker_id, self._name, cause)
        failed = worker.lose(cause)
        self._orphaned += failed
        self._drop(worker)
        self._care.losses.worker_lost(worker.worker_id, worker.num_rows, time.monotonic())
        self._fork(worker.worker_id)
        self._orphaned.clear()
        return failed

    def _fork(self, rung_id: int) -> None:
        frames, pid = self._owner.fork(rung_id)
        care = self._care
        start_by_s = time.monotonic() + care.patience.start_s
        worker = WorkerLink(rung_id, frames, pid, care.limits, start_by_s)
        self._ledger.forget_worker(rung_id)
        self._workers[rung_id] = worker
        self._pids[rung_id] = pid
        care.selector.register(worker.frames, selectors.EVENT_READ, RungWorker(self, worker))

    def _drop(self, worker: WorkerLink) -> None:
        del self._workers[worker.worker_id]
        self._care.selector.unregister(worker.frames)
        worker.frames.close()
