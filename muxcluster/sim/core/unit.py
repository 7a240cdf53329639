"""Units of the simulator: specification, cost models and batch load."""

from collections.abc import Mapping
from dataclasses import dataclass

from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.scheduling.lanes.view import Lane
from muxcluster.sim.demand.feeding import UnitJob
from muxcluster.sim.demand.waves import Waves


@dataclass(frozen=True, slots=True)
class SimModel:
    """Shape of a model, and the cost model of its GPU in its dtype."""

    shape: ModelShape
    cost: Cost
    constrained_share: float = 0.0  # part of its rows that wait for masks


@dataclass(frozen=True, slots=True)
class SimUnit:
    """One unit, as its processes would receive it."""

    spec: UnitSpec
    models: Mapping[str, SimModel]  # for every name in `spec.models`
    waves: tuple[Waves, ...] = ()  # batch load in a closed loop, at most one entry per model
    job: UnitJob | None = None  # a batch job present from the start
    lane: Lane | None = None  # in place of the one that `spec` names: a scheduler that is not ours

    @property
    def tp(self) -> int:
        """GPUs of its mesh; blocks and bytes of `spec` are those of one."""
        return self.spec.tp
