"""A unit as the simulator needs it: what the engine is told, what its jobs cost, its batch load."""

from collections.abc import Mapping
from dataclasses import dataclass

from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.sim.demand.feeding import UnitJob
from muxcluster.sim.demand.waves import Waves


@dataclass(frozen=True, slots=True)
class SimModel:
    """Shape of a model, and the cost model of its GPU in its dtype."""

    shape: ModelShape
    cost: Cost


@dataclass(frozen=True, slots=True)
class SimUnit:
    """One unit on a mesh of `tp` GPUs. models: of every name in `spec.models`.

    host_link: bytes/s between one GPU and host memory in one direction. waves: the batch load that
    it has in a closed loop, one entry a model at most. job: a batch job, there from the start.
    """

    spec: UnitSpec
    models: Mapping[str, SimModel]
    tp: int = 1
    host_link: float = 25e9
    waves: tuple[Waves, ...] = ()
    job: UnitJob | None = None
