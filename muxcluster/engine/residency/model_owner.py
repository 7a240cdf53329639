"""Owner of one resident model: loads its weights, then forks the workers of the unit's rungs.

It is forked by the pool owner (pool_owner.py) with the KV pool in its memory. It answers Ready or
LoadFailed on its control stream, and ends with either of its streams: that parks the model, and
gives all of its memory back.
"""

import socket
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from muxcluster.channel.codec import LoadFailed, Ready, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.memory.arena import HOST, POOL, Arena, allocate
from muxcluster.engine.residency.checks import LoadChecks
from muxcluster.engine.steps.runner import UnitMemory, UnitRunner, load_forward
from muxcluster.engine.workers.child_main import attempted
from muxcluster.engine.workers.owner import Owner, prepare_to_fork
from muxcluster.engine.workers.worker import Worker


@dataclass(frozen=True, slots=True, eq=False)
class SharedMemory:
    """Memory that the owners of a unit's models share, mapped before any fork."""

    pool: Tensor  # uint8 [num_blocks, block_bytes]
    host: Tensor  # uint8 [num_host_blocks, block_bytes]
    checks: LoadChecks

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the shared memory of that name, else new memory; see `arena.Take`."""
        shared = {POOL: self.pool, HOST: self.host}
        if name not in shared:
            return allocate(torch.device("cpu"), name, shape, dtype)
        assert shared[name].shape == shape, f"{name} has {shared[name].shape}, not {shape}"
        return shared[name]


class ModelOwner:
    """Holds one model's weights, tables and histories."""

    def __init__(
        self,
        unit: UnitSpec,
        place: int,
        memory: SharedMemory,
        control: FrameSocket,
        forks: socket.socket,
    ) -> None:
        """place: of the model in the unit."""
        self._unit = unit
        self._place = place
        self._model = unit.models[place]
        self._memory = memory
        self._control = control
        self._forks = forks

    def serve(self) -> None:
        """Load, say so, and fork workers on request until a stream ends."""
        started_s = time.monotonic()
        who = f"the owner of {self._model.name} of {self._unit.unit_id}"
        runner = attempted(who, self._loaded)
        if isinstance(runner, LoadFailed):
            self._control.send(encode(runner))
            return
        prepare_to_fork()
        self._control.send(encode(Ready(runner.backends, time.monotonic() - started_s)))

        def make(_: int, frames: FrameSocket, owner_alive: int) -> Worker:
            return Worker(runner, frames, owner_alive)

        Owner(self._unit.unit_id, make, self._control, self._forks).serve()

    def _loaded(self) -> UnitRunner:
        checks = self._memory.checks
        earlier = checks.earlier(self._place, self._model)
        forward = load_forward(self._model, self._unit, earlier=earlier)
        checks.record(self._place, self._model, forward)
        alone = replace(self._unit, models=(self._model,))
        memory = UnitMemory({self._model.name: forward}, Arena(alone, self._memory.take))
        return UnitRunner(self._unit, memory)
