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
from muxcluster.engine.processes.rungs import SeatPlan, rung_seats
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.worker_thread import Hand


@dataclass(frozen=True, slots=True)
class _Place:
    """A seat's runner and where it runs."""

    runner: SettledRunner
    part: Part

    def launch(self, job: Job) -> SettledJob:
        with self.part.entered():
            return self.runner.launch(job)

    def record_next(self) -> bool:
        with self.part.entered():
            return self.runner.record_next()


class _Seated:
    """Runs the jobs of one worker slot, each in its seat."""

    def __init__(self, worker_id: int, plan: SeatPlan, places: Mapping[int, _Place]) -> None:
        """places: of all seats."""
        self._plan = plan
        self._places = places
        self._own = [places[seat.seat_id] for seat in plan.seats if seat.worker_id == worker_id]

    def launch(self, job: Job) -> SettledJob:
        return self._places[self._plan.seat_of(job)].launch(job)

    def waits(self, job: Job) -> bool:
        return self._places[self._plan.seat_of(job)].runner.waits(job)

    def record_next(self) -> bool:
        return any(place.record_next() for place in self._own)


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
        self._hands: dict[int, Hand] = {}
        self._ended: queue.SimpleQueue[JobDone | JobFailed | SystemExit | None]
        self._ended = queue.SimpleQueue()
        self.backends: tuple[ModelBackend, ...] = ()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        self._parts = self._make_parts(self._spec)
        parts = self._parts.open(self._plan.seats)  # before the weights: it may be refused
        device, memory = torch.device(self._spec.device), None
        warm: set[int] = set()
        for seat in self._plan.seats:
            runner = UnitRunner(self._spec, memory)
            memory, self.backends = runner.memory, runner.backends
            place = _Place(SettledRunner(runner, device), parts[seat.seat_id])
            if device.type == "cuda":
                with place.part.entered():
                    if seat.worker_id not in warm:
                        runner.warm_up(seat.worker_id)
                        warm.add(seat.worker_id)
                    runner.record(seat.worker_id, seat.share or 1.0)
            self._places[seat.seat_id] = place
        for worker in self._spec.workers:
            seated = _Seated(worker.worker_id, self._plan, self._places)
            hand = Hand(f"worker {worker.worker_id}", seated, self._ended.put)
            self._hands[worker.worker_id] = hand
            hand.start()

    def launch(self, job: Job) -> None:
        self._hands[job.worker_id].give(self._ledger.complete(job, self._plan.seat_of(job)))

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
        for hand in self._hands.values():
            hand.close()
        self._hands.clear()
        self._places.clear()
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def _outcome(told: JobDone | JobFailed | SystemExit) -> Outcome:
    """Raises EngineFailure where the process's CUDA context is lost."""
    if isinstance(told, SystemExit):
        reason = told.reason if isinstance(told, ContextLost) else str(told)
        raise EngineFailure(f"the CUDA context is lost: {reason}") from told
    return told
