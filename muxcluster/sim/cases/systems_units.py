"""The plan of a system for a problem, and the units of a plan as the system runs them."""

import math
from dataclasses import replace

from muxcluster.placement.execution import unshared
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


def units_for(system: System, plan: Plan, problem: Problem) -> tuple[SimUnit, ...]:
    """Return the units of `plan` as the system runs them.

    The lane is the system's, and the packing where it names one; all else is the problem's policy.
    A plan made for another lane keeps its meshes and blocks. Raises KeyError where the plan has a
    model or node that the problem does not have.
    """
    units = units_of(plan, asked_by(system, problem))
    if system.shares_sms:
        return units
    return tuple(_one_job_at_a_time(unit, runs_mixed=system.runs_mixed) for unit in units)


def asked_by(system: System, problem: Problem) -> Problem:
    """Return the problem with the system's policies."""
    scheduler = problem.policy.scheduler
    asked = replace(
        scheduler,
        lane=system.lane,
        packing=system.packing or scheduler.packing,
        quota_period_s=scheduler.quota_period_s if system.lends_blocks else _NEVER_S,
    )
    return replace(problem, policy=replace(problem.policy, scheduler=asked))


def _one_job_at_a_time(unit: SimUnit, *, runs_mixed: bool) -> SimUnit:
    """Return the unit with the same lane and one worker on all SMs, for every phase.

    runs_mixed: prompts and decodes of a model are one job, as the lane does where it shares no SMs.
    """
    alone = unshared(unit.spec.scheduler.lane)
    scheduler = replace(unit.spec.scheduler, may_unshare=runs_mixed)
    spec = replace(unit.spec, workers=alone.workers, partition=alone.partition, scheduler=scheduler)
    return replace(unit, spec=spec)
