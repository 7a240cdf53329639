"""Launchers start a unit's processes: which program the owner is, and in which environment."""

import os
from typing import Protocol

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import ONE_THREAD, OwnerLink
from muxcluster.engine.processes.rungs import RungPlan, rung_per_worker


class ProcessLauncher(Protocol):
    """Starts owners, one at a time; called again after every loss of an owner."""

    def plan(self, spec: UnitSpec) -> RungPlan:
        """Return the unit's worker processes."""
        ...

    def owner(self, patience: Patience) -> OwnerLink:
        """Prepare everything and start an owner. Raises EngineFailure if it cannot."""
        ...

    def prepare(self, patience: Patience) -> None:
        """Make the next call of `owner` faster, while nothing runs. Idempotent."""
        ...

    def release(self) -> None:
        """Release what the owner used, after it and its workers have ended; idempotent."""
        ...

    def close(self) -> None:
        """Release everything: no owner will be started any more; idempotent."""
        ...


class ForkLauncher:
    """Starts CPU workers: forks of a single-threaded owner, one per worker.

    A spare owner waits beside the one that serves. It has imported torch and transformers, and
    holds no model.
    """

    # The imports take most of an owner's start: 5 of 7 processor seconds (bench/owner_loss.py).

    def __init__(self, module: str | None = None) -> None:
        """module: the owner's program, as of `OwnerLink`."""
        self._module = module
        self._spare: OwnerLink | None = None

    def plan(self, spec: UnitSpec) -> RungPlan:
        return RungPlan(rung_per_worker(spec.workers))

    def owner(self, patience: Patience) -> OwnerLink:
        spare, self._spare = self._spare, None
        if spare is not None and spare.is_alive:
            return spare
        return self._new(patience)

    def prepare(self, patience: Patience) -> None:
        if self._spare is None or not self._spare.is_alive:
            self.close()
            self._spare = self._new(patience)

    def release(self) -> None:
        """Do nothing: the spare is for the next owner."""

    def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()  # it holds nothing, and may be deep in its imports
            spare.stop()

    def _new(self, patience: Patience) -> OwnerLink:
        environment = {**os.environ, **ONE_THREAD}
        return OwnerLink(patience, module=self._module, environment=environment)
