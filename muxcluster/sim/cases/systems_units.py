"""The plan of a system for a problem, and the plan's units with the system's policies."""

import math
from dataclasses import replace

from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import Method, place
from muxcluster.placement.problem import Problem
from muxcluster.sim.cases.systems import System
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.unit import SimUnit

_OVERLOAD = 100.0  # all meshes full: growing one helps only by the size of its model
_METHODS: dict[str, Method] = {
    "greedy": "greedy",
    "memory-greedy": "memory-greedy",
    "spatial": "spatial",
    "spatial-load": "spatial",
}
_NEVER_S = math.inf


def plan_of(method: str, problem: Problem) -> Plan:
    """Return the plan by `method` (of `systems.METHODS`), without proof of optimality.

    "spatial" plans for equal rates, all too high: meshes then grow by how slow their models are,
    that is by size, as in MuxServe's baseline, whose meshes do not depend on rates. Ignore the
    throughput in its plan. Raises muxcluster.placement.memory.DoesNotFit.
    """
    asked = problem
    if method == "spatial":
        highest = _OVERLOAD * sum(demand.rate for demand in problem.demands)
        same = tuple(replace(demand, rate=highest, weight=1.0) for demand in problem.demands)
        asked = replace(problem, demands=same, objective="throughput")
    return place(asked, _METHODS[method], time_limit_s=0.0)


def units_for(
    system: System, plan: Plan, problem: Problem, policy: SchedulerSpec
) -> tuple[SimUnit, ...]:
    """Return the units of `plan` as the system runs them.

    policy: limits; the lane is the system's, and the packing where it names one. Raises KeyError
    where the plan has a model or node that the problem does not have.
    """
    period_s = policy.quota_period_s if system.lends_blocks else _NEVER_S
    packing = system.packing or policy.packing
    policy = replace(policy, lane=system.lane, packing=packing, quota_period_s=period_s)
    units = units_of(plan, problem, policy)
    return units if system.shares_sms else tuple(map(_whole, units))


def _whole(unit: SimUnit) -> SimUnit:
    """Return the unit with the same workers, each on all SMs or none."""
    workers = tuple(replace(worker, shares=(1.0,)) for worker in unit.spec.workers)
    return replace(unit, spec=replace(unit.spec, workers=workers))
