"""Memory owner of a GPU unit: loads once, exports, spawns a worker process per rung.

Run as `python -m muxcluster.engine.gpu.mps.owner CONTROL_FD FORK_FD` by the unit, with the protocol
of muxcluster.engine.workers.owner. Unlike that owner it says Ready when its workers are ready too
and their shares are verified. Under MPS an error in one process can break the contexts of the
others: then the owner and all workers end, and the unit starts them again.
"""

import logging
import selectors
import socket
import sys

import torch

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.context import ContextLost, check_context, open_context
from muxcluster.engine.gpu.memory.shared import OwnedMemory
from muxcluster.engine.gpu.mps.explaining import explained
from muxcluster.engine.gpu.mps.messages import Lost, StartFailed, WorkerReady
from muxcluster.engine.gpu.mps.spawned import WORKER_MODULE, SpawnedWorker
from muxcluster.engine.gpu.mps.worker_pool import WorkerPool
from muxcluster.engine.gpu.sm_probe import SmProbe
from muxcluster.engine.workers.child_main import serve_unit
from muxcluster.engine.workers.owner import WORKER_ID_BYTES

logger = logging.getLogger(__name__)


class GpuOwner:
    """Serves one unit after its workers are ready."""

    def __init__(self, worker_pool: WorkerPool, control: FrameSocket, forks: socket.socket) -> None:
        self._worker_pool = worker_pool
        self._control = control
        self._forks = forks
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Hand workers over on request until the unit is gone. Raises ContextLost."""
        selector = self._selector
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._forks, selectors.EVENT_READ)
        for worker in self._worker_pool.workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        while True:
            ready = [key for key, _ in selector.select()]
            if any(key.fd == self._control.fileno() for key in ready):
                return
            for key in ready:
                if isinstance(key.data, SpawnedWorker):
                    self._hear(key.data)
                elif not self._hand_over():
                    return

    def _hand_over(self) -> bool:
        """Answer a request for a worker; return False if the unit is gone."""
        request, descriptors, _, _ = socket.recv_fds(self._forks, WORKER_ID_BYTES, 1)
        if not request:
            return False
        worker = self._worker_pool.at(int.from_bytes(request, "little"))
        if worker.has_unit:
            worker = self._replace(worker)
        with socket.socket(fileno=descriptors[0]) as stream:
            worker.give_unit(stream.fileno())
        self._forks.sendall(worker.pid.to_bytes(WORKER_ID_BYTES, "little"))
        return True

    def _replace(self, worker: SpawnedWorker) -> SpawnedWorker:
        """Spawn a new worker for the rung, unless the lost one broke our context."""
        if worker in (key.data for key in self._selector.get_map().values()):
            self._selector.unregister(worker)
        said = worker.last_message()
        worker.end()
        self._check_loss(worker, said)
        fresh = self._worker_pool.spawn(worker.rung)
        self._selector.register(fresh, selectors.EVENT_READ, fresh)
        return fresh

    def _hear(self, worker: SpawnedWorker) -> None:
        """Take a worker's message: it is ready, or gone. The unit sees its stream end itself."""
        if worker is not self._worker_pool.at(worker.rung.rung_id):
            return  # replaced since it spoke
        said = worker.hear()
        if isinstance(said, WorkerReady) and self._worker_pool.is_as_before(worker, said):
            return
        if isinstance(said, WorkerReady | StartFailed):
            logger.error("a new worker %d is refused: %s", worker.rung.rung_id, said)
        self._selector.unregister(worker)
        worker.has_unit = True
        worker.end()
        self._check_loss(worker, said)

    def _check_loss(self, worker: SpawnedWorker, said: object) -> None:
        """Raise ContextLost if the worker's end broke more than the worker."""
        if isinstance(said, Lost):
            logger.error("worker %d lost its context: %s", worker.rung.rung_id, said.reason)
            raise ContextLost(said.reason)
        check_context(self._worker_pool.device)


def main(control_fd: int, fork_fd: int, worker_module: str = WORKER_MODULE) -> int:
    """Serve one unit to its end; return the exit status."""
    forks = socket.socket(fileno=fork_fd)

    def load(spec: UnitSpec) -> WorkerPool:
        """Load memory, start workers and verify their shares."""
        device = torch.device(spec.device)
        open_context(device, spec, {})
        whole = len(SmProbe(device).run())
        worker_pool = WorkerPool(spec, OwnedMemory(spec), whole, worker_module)
        try:
            worker_pool.start()
        except BaseException:
            worker_pool.end()
            raise
        return worker_pool

    def serve(_: UnitSpec, worker_pool: WorkerPool, control: FrameSocket) -> None:
        try:
            GpuOwner(worker_pool, control, forks).serve()
        finally:
            worker_pool.end()

    return serve_unit(
        "mux-owner", control_fd, load, serve, explained, lambda worker_pool: worker_pool.backends
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
