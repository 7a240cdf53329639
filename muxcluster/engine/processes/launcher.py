"""What the processes of a unit stand on: which program their owner is, and in what environment."""

import os
from typing import Protocol

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import ONE_THREAD, OwnerLink
from muxcluster.engine.processes.rungs import RungPlan, rung_per_worker


class ProcessLauncher(Protocol):
    """Made ready before every start of an owner, given back after its end."""

    def plan(self, spec: UnitSpec) -> RungPlan:
        """The unit's worker processes."""
        ...

    def owner(self, patience: Patience) -> OwnerLink:
        """Prepare everything and start an owner. Raises EngineFailure: why it cannot be had."""
        ...

    def prepare(self, patience: Patience) -> None:
        """All is well and nothing runs: do what makes the next `owner` faster. Idempotent."""
        ...

    def release(self) -> None:
        """The owner and its workers have ended; idempotent."""
        ...

    def close(self) -> None:
        """No owner will be asked for any more; idempotent."""
        ...


class ForkLauncher:
    """CPU workers: forks of a single-threaded owner, one per worker.

    A spare owner waits beside the one that serves. It has imported torch and transformers, which
    takes most of an owner's start (5 of 7 processor seconds, bench/owner_loss.py), and holds no
    model.
    """

    def __init__(self) -> None:
        self._spare: OwnerLink | None = None

    def plan(self, spec: UnitSpec) -> RungPlan:
        return RungPlan(rung_per_worker(spec.workers))

    def owner(self, patience: Patience) -> OwnerLink:
        spare, self._spare = self._spare, None
        if spare is not None and spare.is_alive:
            return spare
        return OwnerLink(patience, environment={**os.environ, **ONE_THREAD})

    def prepare(self, patience: Patience) -> None:
        if self._spare is None or not self._spare.is_alive:
            self.close()
            self._spare = OwnerLink(patience, environment={**os.environ, **ONE_THREAD})

    def release(self) -> None:
        """Nothing is held: the spare is for the next owner."""

    def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()  # it holds nothing, and may be deep in its imports
            spare.stop()
