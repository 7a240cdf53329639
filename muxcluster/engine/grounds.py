"""What the processes of a unit stand on: which program their owner is, and in what environment."""

import os
from dataclasses import dataclass
from typing import Protocol

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.liveness import Patience
from muxcluster.engine.ownerlink import ONE_THREAD, OwnerLink
from muxcluster.engine.seats import SeatPlan, slot_seats


class Ground(Protocol):
    """Made ready before every start of an owner, given back after its end."""

    def plan(self, spec: UnitSpec) -> SeatPlan:
        """The unit's worker processes."""
        ...

    def owner(self, patience: Patience) -> OwnerLink:
        """Prepare everything and start an owner. Raises EngineFailure: why it cannot be had."""
        ...

    def release(self) -> None:
        """The owner and its workers have ended; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class ForkGround:
    """CPU workers: forks of a single-threaded owner, one a slot."""

    def plan(self, spec: UnitSpec) -> SeatPlan:
        return SeatPlan(slot_seats(spec.workers))

    def owner(self, patience: Patience) -> OwnerLink:
        return OwnerLink(patience, environment={**os.environ, **ONE_THREAD})

    def release(self) -> None:
        """Nothing is held."""
