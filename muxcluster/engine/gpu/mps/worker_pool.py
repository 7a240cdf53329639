"""The workers of an owner: spawned, verified and ended together."""

import logging
import selectors
import time
from collections.abc import Iterator

import torch

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.memory.shared import OwnedMemory
from muxcluster.engine.gpu.mps.explaining import explained
from muxcluster.engine.gpu.mps.messages import StartFailed, WorkerReady
from muxcluster.engine.gpu.mps.spawned import SpawnedWorker
from muxcluster.engine.gpu.refusals import WORKER_LATE
from muxcluster.engine.gpu.shares import check_shares
from muxcluster.engine.processes.rungs import WorkerRung, rung_per_share

logger = logging.getLogger(__name__)

# time for all workers to be ready: they import torch, map memory, record decode steps
START_S = 300.0

_REAP_S = 10.0


class WorkerPool:
    """One worker process per rung."""

    def __init__(self, spec: UnitSpec, memory: OwnedMemory, whole: int, module: str) -> None:
        """whole: multiprocessors on which the owner sees work run. module: the worker's program."""
        self.device = torch.device(spec.device)
        self._spec = spec
        self._memory = memory
        self._whole = whole
        self._module = module
        self._workers: dict[int, SpawnedWorker] = {}
        self._seen: dict[int, frozenset[int]] = {}

    @property
    def workers(self) -> tuple[SpawnedWorker, ...]:
        """The newest worker of each rung."""
        return tuple(self._workers.values())

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """How the models run."""
        return self._memory.backends

    def at(self, rung_id: int) -> SpawnedWorker:
        return self._workers[rung_id]

    def spawn(self, rung: WorkerRung) -> SpawnedWorker:
        """Spawn a (new) worker for the rung; it is not ready yet."""
        worker = SpawnedWorker(self._spec, rung, self._memory.manifest, self._module)
        self._workers[rung.rung_id] = worker
        return worker

    def start(self, limit_s: float = START_S) -> None:
        """Spawn all workers and wait until they are ready; then verify their shares.

        Raises EngineFailure: which worker cannot start and why, or which share did not take effect.
        """
        rungs = rung_per_share(self._spec.workers)
        for rung in rungs:
            self.spawn(rung)
        deadline_s = time.monotonic() + limit_s
        for worker, said in self._answers(deadline_s, limit_s):
            self._seen[worker.rung.rung_id] = frozenset(said.sm_ids)
        check_shares(rungs, self._seen, self._whole)
        counts = (f"{len(self._seen[rung.rung_id])} at {rung.share:g}" for rung in rungs)
        logger.info("%s: multiprocessors seen: %s", self._spec.unit_id, ", ".join(counts))

    def is_as_before(self, worker: SpawnedWorker, said: WorkerReady) -> bool:
        """Return whether a new worker has as many multiprocessors as the first one of its rung."""
        return len(said.sm_ids) == len(self._seen[worker.rung.rung_id])

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end()

    def _answers(
        self, deadline_s: float, limit_s: float
    ) -> Iterator[tuple[SpawnedWorker, WorkerReady]]:
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

    def _answer(self, worker: SpawnedWorker) -> WorkerReady:
        said = worker.hear()
        if said is None:
            raise worker.ended(worker.reap(_REAP_S))
        if isinstance(said, WorkerReady):
            return said
        assert isinstance(said, StartFailed), "a worker lost its context without a job"
        who = f"worker {worker.rung.worker_id} at SM share {worker.rung.share:g}"
        raise EngineFailure(f"{who}: {explained(said.message)}")

    def _late(self, worker: SpawnedWorker, limit_s: float) -> EngineFailure:
        rung = worker.rung
        return EngineFailure(
            WORKER_LATE.format(worker=rung.worker_id, share=rung.share, seconds=limit_s)
        )
