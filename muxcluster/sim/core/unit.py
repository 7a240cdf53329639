"""Units of the simulator: specification, cost models and batch load, and those of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass

from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import Cost, cost_for
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Demand, Problem
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.placement.specs import unit_specs
from muxcluster.sim.demand.feeding import UnitJob
from muxcluster.sim.demand.waves import Waves


@dataclass(frozen=True, slots=True)
class SimModel:
    """Shape of a model, and the cost model of its GPU in its dtype."""

    shape: ModelShape
    cost: Cost


@dataclass(frozen=True, slots=True)
class SimUnit:
    """One unit, as its processes would receive it."""

    spec: UnitSpec
    models: Mapping[str, SimModel]  # for every name in `spec.models`
    waves: tuple[Waves, ...] = ()  # batch load in a closed loop, at most one entry per model
    job: UnitJob | None = None  # a batch job present from the start

    @property
    def tp(self) -> int:
        """GPUs of its mesh; blocks and bytes of `spec` are those of one."""
        return self.spec.tp


def units_of(plan: Plan, problem: Problem) -> tuple[SimUnit, ...]:
    """Return one unit per unit of the plan, specified as the engine's are.

    Raises KeyError for a model or node that the problem does not name, and what `unit_specs` does.
    """
    gpus = {node.name: node.gpu for node in problem.nodes}
    demands = {demand.name: demand for demand in problem.demands}
    return tuple(
        _unit(spec, gpus[unit.node], demands, problem)
        for unit, spec in zip(plan.units, unit_specs(problem, plan), strict=True)
    )


def _unit(spec: UnitSpec, gpu: Gpu, demands: dict[str, Demand], problem: Problem) -> SimUnit:
    mine = [demands[model.name] for model in spec.models]
    models = {
        demand.name: SimModel(demand.shape, cost_for(gpu, demand.itemsize, problem.profiles))
        for demand in mine
    }
    return SimUnit(spec, models)
