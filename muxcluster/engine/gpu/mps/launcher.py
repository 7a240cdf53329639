"""Partition `mps`: one worker process per worker and SM share, under a daemon of our own."""

import os
from dataclasses import replace

from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.gpu_id import PERCENTAGE, gpu_id_of
from muxcluster.engine.gpu.memory.allocator import check_configuration
from muxcluster.engine.gpu.mps.guarded import GuardedDaemon
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import OwnerLink
from muxcluster.engine.processes.rungs import RungPlan, rung_per_share

OWNER_MODULE = "muxcluster.engine.gpu.mps.owner"

# An owner that waits for its workers uses no processor time, and it gives up by itself. A worker
# that replaces another imports torch, maps memory and records decode steps before it takes jobs.
GPU_PATIENCE = Patience(load_s=360.0, fork_s=30.0, start_s=360.0)


class MpsLauncher:
    """Starts the daemon, then the owner, and ends them in the opposite order.

    Both are new after a loss: a server whose client broke takes no work until all clients are gone.
    """

    def __init__(self, gpu_id: str | None, owner_module: str = OWNER_MODULE) -> None:
        """gpu_id: as `CUDA_VISIBLE_DEVICES` names it; None: no daemon, for a unit on the CPU."""
        self._gpu_id = gpu_id
        self._owner_module = owner_module
        self._daemon: GuardedDaemon | None = None

    def plan(self, spec: UnitSpec) -> RungPlan:
        return RungPlan(rung_per_share(spec.workers))

    def owner(self, patience: Patience) -> OwnerLink:
        check_configuration(os.environ)
        environment = dict(os.environ)
        environment.pop(PERCENTAGE, None)  # the owner has the whole GPU
        if self._gpu_id is not None:
            self._daemon = GuardedDaemon(self._gpu_id)
            environment |= self._daemon.environment
        return OwnerLink(patience, module=self._owner_module, environment=environment)

    def prepare(self, patience: Patience) -> None:
        """Do nothing: a spare process would have no context of its own on the new daemon."""

    def close(self) -> None:
        """Do nothing: nothing is kept from owner to owner."""

    def release(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None


class MpsExecutor(ProcessExecutor):
    """`ProcessExecutor` with an `MpsLauncher`."""

    def __init__(self, spec: UnitSpec) -> None:
        """Raises EngineFailure if the unit's GPU is not visible."""
        try:
            gpu_id = gpu_id_of(spec.device, os.environ)
        except ValueError as error:
            raise EngineFailure(str(error)) from error
        # The daemon shows its clients one GPU.
        super().__init__(replace(spec, device="cuda:0"), GPU_PATIENCE, MpsLauncher(gpu_id))
