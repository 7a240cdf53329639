"""Partition `green`: workers are threads of the unit's process, shares are green contexts."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.gpu.context import ContextLost, SettledJob, SettledRunner
from muxcluster.engine.gpu.green.parts import Part, Parts, parts_for
from muxcluster.engine.processes.admissions import AdmissionLedger
from muxcluster.engine.processes.rungs import RungPlan, rung_per_share
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.worker_thread import WorkerThread


@dataclass(frozen=True, slots=True)
class _Place:
    runner: SettledRunner
    part: Part

    def launch(self, job: Job) -> SettledJob:
        with self.part.entered():
            return self.runner.launch(job)

    def record_next(self) -> bool:
        with self.part.entered():
            return self.runner.record_next()


class _WorkerJobs:
    def __init__(self, worker_id: int, plan: RungPlan, places: Mapping[int, _Place]) -> None:
        self._plan = plan
        self._places = places
        self._own = [places[rung.rung_id] for rung in plan.rungs if rung.worker_id == worker_id]

    def launch(self, job: Job) -> SettledJob:
        return self._places[self._plan.rung_of(job)].launch(job)

    def waits(self, job: Job) -> bool:
        return self._places[self._plan.rung_of(job)].runner.waits(job)

    def record_next(self) -> bool:
        return any(place.record_next() for place in self._own)


class GreenExecutor:
    """Executor with one thread per worker, and one runner and green context per rung.

    Weights, pool and tables exist once. Jobs of different workers overlap. A CUDA error that breaks
    the context breaks the process: the unit fails, and its parent starts it again.
    """

    def __init__(self, spec: UnitSpec, make_parts: Callable[[UnitSpec], Parts] = parts_for) -> None:
        """make_parts: makes the parts of the device where rungs run. Starts nothing yet."""
        self._spec = spec
        self._make_parts = make_parts
        self._parts: Parts | None = None
        self._plan = RungPlan(rung_per_share(spec.workers))
        self._ledger = AdmissionLedger.of(spec, [rung.rung_id for rung in self._plan.rungs])
        self._places: dict[int, _Place] = {}
        self._threads: dict[int, WorkerThread] = {}
        self._ended: queue.SimpleQueue[JobDone | JobFailed | SystemExit | None]
        self._ended = queue.SimpleQueue()
        self.backends: tuple[ModelBackend, ...] = ()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        self._parts = self._make_parts(self._spec)
        parts = self._parts.open(self._plan.rungs)  # before the weights: it may be refused
        device, memory = torch.device(self._spec.device), None
        warm: set[int] = set()
        for rung in self._plan.rungs:
            runner = UnitRunner(self._spec, memory)
            memory, self.backends = runner.memory, runner.backends
            place = _Place(SettledRunner(runner, device), parts[rung.rung_id])
            if device.type == "cuda":
                with place.part.entered():
                    if rung.worker_id not in warm:
                        runner.warm_up(rung.worker_id)
                        warm.add(rung.worker_id)
                    runner.record(rung.worker_id, rung.share or 1.0)
            self._places[rung.rung_id] = place
        for worker in self._spec.workers:
            jobs = _WorkerJobs(worker.worker_id, self._plan, self._places)
            thread = WorkerThread(f"worker {worker.worker_id}", jobs, self._ended.put)
            self._threads[worker.worker_id] = thread
            thread.start()

    def launch(self, job: Job) -> None:
        self._threads[job.worker_id].give(self._ledger.complete(job, self._plan.rung_of(job)))

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        try:
            ended = [self._ended.get(timeout=timeout_s)]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return []
        return [_outcome(each) for each in ended if each is not None]

    def restart(self) -> None:
        """Raises EngineFailure always: memory of this process cannot be lost alone."""
        raise EngineFailure("an executor of threads has no owner to restart")

    def wake(self) -> None:
        self._ended.put(None)

    def kill(self) -> None:
        """Nothing to end: there are no child processes."""

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()
        self._places.clear()
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def _outcome(told: JobDone | JobFailed | SystemExit) -> Outcome:
    """Return the outcome. Raises EngineFailure if the process's CUDA context is lost."""
    if isinstance(told, SystemExit):
        reason = told.reason if isinstance(told, ContextLost) else str(told)
        raise EngineFailure(f"the CUDA context is lost: {reason}") from told
    return told
