"""Workers that are threads of one process, each with a runner and a part of the device a rung."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from muxcluster.core.backends import ModelBackend
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.gpu.context import SettledJob, SettledRunner
from muxcluster.engine.gpu.green.parts import Part
from muxcluster.engine.processes.admissions import AdmissionLedger
from muxcluster.engine.processes.rungs import RungPlan, WorkerRung
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner
from muxcluster.engine.workers.worker_thread import WorkerThread

MakeRunner = Callable[[UnitMemory | None], UnitRunner]
Report = Callable[[JobDone | JobFailed | SystemExit], None]
# Of a worker id: what a thread enters while it gives the worker's work to the device.
Entered = Callable[[int], AbstractContextManager[None]]


def _enter_nothing(_: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class _Place:
    runner: SettledRunner
    part: Part
    worker_id: int
    entered: Entered

    def launch(self, job: Job) -> SettledJob:
        with self.part.entered(), self.entered(self.worker_id):
            return self.runner.launch(job)

    def record_next(self) -> bool:
        with self.part.entered(), self.entered(self.worker_id):
            return self.runner.record_next()


class _WorkerJobs:
    def __init__(self, plan: RungPlan, places: Sequence[tuple[int, _Place]], records: bool) -> None:
        self._plan = plan
        self._places = dict(places)
        self._records = records

    def launch(self, job: Job) -> SettledJob:
        return self._places[self._plan.rung_of(job)].launch(job)

    def waits(self, job: Job) -> bool:
        return self._places[self._plan.rung_of(job)].runner.waits(job)

    def record_next(self) -> bool:
        return self._records and any(place.record_next() for place in self._places.values())


class RungThreads:
    """One thread per worker and one runner per rung, over weights, pool and tables that exist once.

    Jobs of different workers overlap.
    """

    def __init__(
        self,
        spec: UnitSpec,
        plan: RungPlan,
        *,
        entered: Entered = _enter_nothing,
        records_idle: bool = True,
    ) -> None:
        """records_idle: whether an idle worker records steps that its jobs have wanted."""
        self._spec = spec
        self._plan = plan
        self._entered = entered
        self._records_idle = records_idle
        self._ledger = AdmissionLedger.of(spec, [rung.rung_id for rung in plan.rungs])
        self._places: dict[int, _Place] = {}
        self._threads: dict[int, WorkerThread] = {}

    def load(self, parts: Mapping[int, Part], make: MakeRunner) -> tuple[ModelBackend, ...]:
        """Make a runner for every rung, the first with the memory; return how the models run.

        parts: by rung id. On a GPU the likeliest steps of every rung are recorded.
        """
        device, memory = torch.device(self._spec.device), None
        backends: tuple[ModelBackend, ...] = ()
        warm: set[int] = set()
        for rung in self._plan.rungs:
            runner = make(memory)
            memory, backends = runner.memory, runner.backends
            settled = SettledRunner(runner, device)
            place = _Place(settled, parts[rung.rung_id], rung.worker_id, self._entered)
            if device.type == "cuda":
                with place.part.entered(), self._entered(rung.worker_id):
                    _prepare(runner, rung, is_first=rung.worker_id not in warm)
                warm.add(rung.worker_id)
            self._places[rung.rung_id] = place
        return backends

    def start(self, report: Report) -> None:
        """Take jobs from now on.

        report: called on a worker's thread with every outcome, or a job's SystemExit.
        """
        for worker in self._spec.workers:
            own = [
                (rung.rung_id, self._places[rung.rung_id])
                for rung in self._plan.rungs
                if rung.worker_id == worker.worker_id
            ]
            jobs = _WorkerJobs(self._plan, own, self._records_idle)
            thread = WorkerThread(f"worker {worker.worker_id}", jobs, report)
            self._threads[worker.worker_id] = thread
            thread.start()

    def give(self, job: Job) -> None:
        """Give the job to its worker, which runs it after those it has."""
        self._threads[job.worker_id].give(self._ledger.complete(job, self._plan.rung_of(job)))

    def close(self) -> None:
        """Wait for jobs that have begun; drop the rest."""
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()
        self._places.clear()


def _prepare(runner: UnitRunner, rung: WorkerRung, *, is_first: bool) -> None:
    if is_first:  # of its worker
        runner.warm_up(rung.worker_id)
    runner.record(rung.worker_id, rung.share or 1.0)
