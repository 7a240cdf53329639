"""The workers of an owner: spawned together, verified together, ended together."""

import logging
import selectors
import time
from collections.abc import Iterator

import torch

from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.memory.shared import OwnedMemory
from muxcluster.engine.gpu.mps.explaining import explained
from muxcluster.engine.gpu.mps.messages import Seated, Unseated
from muxcluster.engine.gpu.mps.spawned import SpawnedWorker
from muxcluster.engine.gpu.refusals import WORKER_LATE
from muxcluster.engine.gpu.shares import check_shares
from muxcluster.engine.processes.rungs import Seat, rung_seats

logger = logging.getLogger(__name__)

START_S = 300.0
"""Within which all workers must be ready: they import torch, map memory, record decode steps."""

_REAP_S = 10.0


class Staff:
    """One worker a seat. whole: multiprocessors that the owner itself sees work run on."""

    def __init__(self, spec: UnitSpec, memory: OwnedMemory, whole: int, module: str) -> None:
        self.device = torch.device(spec.device)
        self._spec = spec
        self._memory = memory
        self._whole = whole
        self._module = module
        self._workers: dict[int, SpawnedWorker] = {}
        self._seen: dict[int, frozenset[int]] = {}

    @property
    def workers(self) -> tuple[SpawnedWorker, ...]:
        """The newest of each seat."""
        return tuple(self._workers.values())

    def at(self, seat_id: int) -> SpawnedWorker:
        """The newest worker of the seat."""
        return self._workers[seat_id]

    def spawn(self, seat: Seat) -> SpawnedWorker:
        """A (new) worker for the seat; it is not ready yet."""
        worker = SpawnedWorker(self._spec, seat, self._memory.manifest, self._module)
        self._workers[seat.seat_id] = worker
        return worker

    def assemble(self, limit_s: float = START_S) -> None:
        """Spawn all workers and wait until they are ready; then verify their shares.

        Raises EngineFailure: which worker cannot start and why, or which share did not take effect.
        """
        seats = rung_seats(self._spec.workers)
        for seat in seats:
            self.spawn(seat)
        deadline_s = time.monotonic() + limit_s
        for worker, said in self._answers(deadline_s, limit_s):
            self._seen[worker.seat.seat_id] = frozenset(said.sm_ids)
        check_shares(seats, self._seen, self._whole)
        counts = (f"{len(self._seen[seat.seat_id])} at {seat.share:g}" for seat in seats)
        logger.info("%s: multiprocessors seen: %s", self._spec.unit_id, ", ".join(counts))

    def is_as_before(self, worker: SpawnedWorker, said: Seated) -> bool:
        """Whether a new worker has as many multiprocessors as the first one of its seat."""
        return len(said.sm_ids) == len(self._seen[worker.seat.seat_id])

    def dismiss(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.end()

    def _answers(self, deadline_s: float, limit_s: float) -> Iterator[tuple[SpawnedWorker, Seated]]:
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker, selectors.EVENT_READ, worker)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline_s - time.monotonic()))
                if not ready:
                    raise self._late(next(iter(selector.get_map().values())).data, limit_s)
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    yield key.data, self._answer(key.data)

    def _answer(self, worker: SpawnedWorker) -> Seated:
        said = worker.hear()
        if said is None:
            raise worker.ended(worker.reap(_REAP_S))
        if isinstance(said, Seated):
            return said
        assert isinstance(said, Unseated), "a worker lost its context without a job"
        who = f"worker {worker.seat.worker_id} at SM share {worker.seat.share:g}"
        raise EngineFailure(f"{who}: {explained(said.message)}")

    def _late(self, worker: SpawnedWorker, limit_s: float) -> EngineFailure:
        seat = worker.seat
        return EngineFailure(
            WORKER_LATE.format(worker=seat.worker_id, share=seat.share, seconds=limit_s)
        )
