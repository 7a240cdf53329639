"""Pool owner of a unit with more models than memory: maps the KV pool, forks an owner a model.

Run as `python -m muxcluster.engine.residency.pool_owner CONTROL_FD FORK_FD` by the unit, with the
protocol of muxcluster.engine.workers.owner; the id of a child is its model's place in the unit. It
holds no weights, and has imported what loading needs, so a model's owner begins to read at once. It
keeps a single thread, as every process that forks here.
"""

import ctypes
import logging
import os
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.memory.arena import HOST, POOL, allocate
from muxcluster.engine.residency.checking import shown_by
from muxcluster.engine.residency.checks import LoadChecks
from muxcluster.engine.residency.model_owner import ModelOwner, SharedMemory
from muxcluster.engine.workers.child_main import serve_unit
from muxcluster.engine.workers.owner import Owner, Servant, prepare_to_fork

logger = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

# After the end of a model's owner its workers end too, for so long at most: they are reaped so
# often.
_ORPHANS_S = 5.0
_REAP_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What the pool owner has before any model is loaded."""

    memory: SharedMemory
    backends: tuple[ModelBackend, ...]  # of the models whose backend shows without their weights


class PoolOwner(Owner):
    """Forks a model's owner whenever the unit wakes it, and kills it on request."""

    _KIND = "model"

    def __init__(
        self, spec: UnitSpec, memory: SharedMemory, control: FrameSocket, forks: socket.socket
    ) -> None:
        super().__init__(spec.unit_id, _no_worker, control, forks)
        self._spec = spec
        self._memory = memory
        self._reap_until_s = 0.0

    def _servant(
        self, child_id: int, streams: Sequence[socket.socket], owner_alive: int
    ) -> Servant:
        os.close(owner_alive)  # it watches its streams
        control, forks = streams
        return ModelOwner(self._spec, child_id, self._memory, FrameSocket(control), forks)

    def _ready(self, selector: selectors.BaseSelector) -> set[int]:
        while True:
            reap_s = _REAP_S if time.monotonic() < self._reap_until_s else None
            ready = {key.fd for key, _ in selector.select(reap_s)}
            if ready:
                return ready
            self._reap()

    def _end(self, child_id: int) -> None:
        super()._end(child_id)
        self._reap_until_s = time.monotonic() + _ORPHANS_S
        self._reap()

    def _reap(self) -> None:
        """Reap what has ended: workers of lost owners, and owners that the unit will end."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._children = {i: each for i, each in self._children.items() if each != pid}


def _no_worker(*_: object) -> Servant:
    raise AssertionError("the pool owner has no workers of its own")


def _load(spec: UnitSpec) -> Prepared:
    torch.set_num_threads(1)
    _adopt_orphans()
    shown = [shown_by(model) for model in spec.models]
    cpu = torch.device("cpu")
    memory = SharedMemory(
        allocate(cpu, POOL, (spec.num_blocks, spec.block_bytes), torch.uint8),
        allocate(cpu, HOST, (spec.num_host_blocks, spec.block_bytes), torch.uint8),
        LoadChecks([None if each is None else each.calls for each in shown]),
    )
    prepare_to_fork()
    return Prepared(memory, tuple(each.backend for each in shown if each is not None))


def _adopt_orphans() -> None:
    """Become the parent of workers whose owner is lost, so that their ids stay theirs until the
    unit has killed them; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(control_fd: int, fork_fd: int) -> int:
    """Serve one unit to its end; return the exit status."""
    forks = socket.socket(fileno=fork_fd)

    def serve(spec: UnitSpec, prepared: Prepared, control: FrameSocket) -> None:
        PoolOwner(spec, prepared.memory, control, forks).serve()

    return serve_unit("mux-pool", control_fd, _load, serve, backends=lambda each: each.backends)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
