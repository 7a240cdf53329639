"""Partition `green`: workers are threads of the unit's process, shares are green contexts."""

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job, JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.admissions import AdmissionLedger
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.gpu.context import ContextLost, SettledRunner
from muxcluster.engine.gpu.parts import Part, Parts, parts_for
from muxcluster.engine.runner import UnitRunner
from muxcluster.engine.seats import SeatPlan, rung_seats, runs_decodes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Place:
    """A seat's runner and where it runs."""

    runner: SettledRunner
    part: Part

    def run(self, job: Job) -> JobResult:
        with self.part.entered():
            return self.runner.execute(job)


class GreenExecutor:
    """One thread a worker slot, one runner and one context a seat; weights, pool and tables once.

    Jobs of different slots overlap. A CUDA error that breaks the context breaks the process: the
    unit fails, and whoever started it starts it anew.
    """

    def __init__(self, spec: UnitSpec, make_parts: Callable[[UnitSpec], Parts] = parts_for) -> None:
        """make_parts: where seats run. Nothing starts yet."""
        self._spec = spec
        self._make_parts = make_parts
        self._parts: Parts | None = None
        self._plan = SeatPlan(rung_seats(spec.workers))
        self._ledger = AdmissionLedger.of(spec, [seat.seat_id for seat in self._plan.seats])
        self._places: dict[int, _Place] = {}
        self._threads: dict[int, ThreadPoolExecutor] = {}
        self._ended: queue.SimpleQueue[tuple[Job, Future[JobResult]] | None] = queue.SimpleQueue()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        self._parts = self._make_parts(self._spec)
        parts = self._parts.open(self._plan.seats)  # before the weights: it may be refused
        device, memory = torch.device(self._spec.device), None
        for seat in self._plan.seats:
            runner = UnitRunner(self._spec, memory)
            memory = runner.memory
            place = _Place(SettledRunner(runner, device), parts[seat.seat_id])
            if device.type == "cuda" and runs_decodes(seat, self._spec.workers):
                with place.part.entered():
                    runner.record(seat.worker_id)
            self._places[seat.seat_id] = place
        for worker in self._spec.workers:
            self._threads[worker.worker_id] = ThreadPoolExecutor(1, f"worker {worker.worker_id}")

    def launch(self, job: Job) -> None:
        seat_id = self._plan.seat_of(job)
        place, known = self._places[seat_id], self._ledger.complete(job, seat_id)
        running = self._threads[job.worker_id].submit(place.run, known)
        running.add_done_callback(lambda future: self._ended.put((job, future)))

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        try:
            ended = [self._ended.get(timeout=timeout_s)]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return []
        return [_outcome(*each) for each in ended if each is not None]

    def restart(self) -> None:
        """Raises EngineFailure always: memory of this process cannot be lost alone."""
        raise EngineFailure("an executor of threads has no owner to restart")

    def wake(self) -> None:
        self._ended.put(None)

    def kill(self) -> None:
        """Nothing to end: there are no child processes."""

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        self._threads.clear()
        self._places.clear()
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def _outcome(job: Job, future: "Future[JobResult]") -> Outcome:
    """Raises EngineFailure where the process's CUDA context is lost."""
    error = future.exception()
    if error is None:
        return JobDone(future.result())
    if isinstance(error, ContextLost):
        raise EngineFailure(f"the CUDA context is lost: {error.reason}") from error
    logger.error("job %d of %s failed", job.job_id, job.model, exc_info=error)
    return JobFailed(job.job_id, job.worker_id, f"{type(error).__name__}: {error}")
