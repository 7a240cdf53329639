"""A unit of a plan as the estimator takes it: its models with their rates, and its node."""

from muxcluster.placement.estimator.unit import Offer
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node, Problem


def offers_of(problem: Problem, plan: Plan, unit: PlannedUnit) -> tuple[Offer, ...]:
    """Return the models of a unit with their rates: a model's whole rate, or its replica's part.

    Raises ValueError for a model that is not in the problem.
    """
    indices = {demand.name: index for index, demand in enumerate(problem.demands)}
    offers = []
    for model in unit.models:
        if model.name not in indices:
            raise ValueError(f"unit {unit.id}: no model {model.name!r} is asked for")
        index = indices[model.name]
        part = _part(plan, unit, model.name)
        offers.append((index, problem.demands[index].rate * part))
    return tuple(offers)


def _part(plan: Plan, unit: PlannedUnit, name: str) -> float:
    served = {
        each.id: model.throughput
        for each in plan.units
        for model in each.models
        if model.name == name
    }
    total = sum(served.values())
    return served[unit.id] / total if total > 0 else 1 / len(served)


def node_of(problem: Problem, unit: PlannedUnit) -> Node:
    """Return the unit's node. Raises ValueError if the cluster has none of that name."""
    for node in problem.nodes:
        if node.name == unit.node:
            return node
    raise ValueError(f"unit {unit.id} is on node {unit.node!r}, which the cluster has not")


def equal_units(plan: Plan, unit: PlannedUnit) -> list[PlannedUnit]:
    """Return the units of the plan, this one included, among which a request of a model that may be
    parked goes to the one that has its weights: those with the same models and memory."""
    if not unit.resident_bytes:
        return [unit]
    kind = _kind(unit)
    return [each for each in plan.units if _kind(each) == kind]


def _kind(unit: PlannedUnit) -> tuple[object, ...]:
    names = frozenset(model.name for model in unit.models)
    return unit.tp, unit.resident_bytes, unit.kv_blocks, names
