"""The units of a plan, ready to be simulated."""

# apart from unit.py: plans need pydantic, which the machine that lends a GPU may not have

from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.cost import cost_for
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Demand, Problem
from muxcluster.placement.specs import unit_specs
from muxcluster.sim.core.unit import SimModel, SimUnit


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
        demand.name: SimModel(
            demand.shape,
            cost_for(gpu, demand.itemsize, problem.profiles),
            demand.constrained_share,
        )
        for demand in mine
    }
    return SimUnit(spec, models)
