"""Reasons for the GPUs that a plan leaves idle."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Estimator, equal_units, offers_of
from muxcluster.placement.memory import DoesNotFit, least_missing
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node, Problem
from muxcluster.placement.review.headroom import Headroom
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.greedy import replicas
from muxcluster.placement.search.layout import EASY, PlacedUnit, UnitBuilder
from muxcluster.placement.search.refusals import first_refusal

_LESS = 0.99  # part of a unit's strain below which a replica relieves it


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """Idle GPUs of a node."""

    node: str
    gpus: tuple[int, ...]
    reason: str


def idle_gpus(problem: Problem, plan: Plan, least: Headroom | None) -> tuple[IdleGpus, ...]:
    """Return all idle GPUs, by node, with the reason.

    least: the plan's headroom (`review.headroom`), None if the estimator cannot judge the plan.
    """
    taken = {(unit.node, gpu) for unit in plan.units for gpu in unit.gpus}
    found = []
    for node in problem.nodes:
        gpus = tuple(gpu for gpu in range(node.num_gpus) if (node.name, gpu) not in taken)
        if gpus:
            reason = _reason(problem, plan, least, node, gpus)
            found.append(IdleGpus(node.name, gpus, reason))
    return tuple(found)


def _reason(
    problem: Problem, plan: Plan, least: Headroom | None, node: Node, gpus: Sequence[int]
) -> str:
    if plan.objective == "fewest-gpus":
        return "the objective asks for the fewest GPUs"
    if plan.method not in ("greedy", "exact") or least is None:
        return f"method {plan.method} does not use them"
    largest = max(size for size in _powers(len(gpus)) if _has_run(gpus, size))
    builder = UnitBuilder(Estimator(problem), kinds_of([Node(node.name, largest, node.gpu)]))
    refusals = _refusals(builder)
    if len(refusals) == len(problem.demands):
        nearest = least_missing(refusals.values())
        return f"no model fits there; nearest is {nearest.model}: {nearest.reason}"
    if all(name in refusals for name in least.models):
        first = refusals[least.models[0]]
        return (
            f"{least.unit} limits the headroom, and what it runs does not fit there: {first.reason}"
        )
    return _no_gain(builder, plan, least)


def _refusals(builder: UnitBuilder) -> Mapping[str, DoesNotFit]:
    """Return by name the models that fit on none of the builder's meshes."""
    found = {}
    for index, demand in enumerate(builder.estimator.problem.demands):
        if all(builder.unit(gpu, tp, [(index, demand.rate)]) is None for gpu, tp in builder.meshes):
            found[demand.name] = first_refusal(builder, index)
    return found


def _no_gain(builder: UnitBuilder, plan: Plan, least: Headroom) -> str:
    """Say what the best replica of the unit with least headroom would gain, if anything."""
    problem = builder.estimator.problem
    if least.factor * EASY >= 1:
        return f"all rates can grow to {least.factor:.0f} times these without them"
    (unit,) = (unit for unit in plan.units if unit.id == least.unit)
    (here,) = (node.gpu for node in problem.nodes if node.name == unit.node)
    num_units = len(equal_units(plan, unit))
    offers = [(index, rate * num_units) for index, rate in offers_of(problem, plan, unit)]
    full = builder.unit(here, unit.tp, offers, num_units)
    if full is None and num_units > 1:  # at these rates they make no one cache
        alone = [(index, rate / num_units) for index, rate in offers]
        full = builder.unit(here, unit.tp, alone)
    if full is None:
        return f"method {plan.method} does not use them"
    best = min((_worst(new) for new in _relieved(builder, full)), default=full.strain)
    if best >= _LESS * full.strain:
        return f"no replica or larger mesh for {least.unit} raises the headroom"
    return (
        f"a replica for {least.unit} would raise its headroom from {1 / full.strain:.3g} to "
        f"{1 / best:.3g} times its rates, which is not worth its memory and time to load"
    )


def _relieved(builder: UnitBuilder, unit: PlacedUnit) -> Iterator[tuple[PlacedUnit, ...]]:
    for gpu, tp in builder.meshes:
        yield from replicas(builder, unit, gpu, tp)


def _worst(units: Sequence[PlacedUnit]) -> float:
    return max(unit.strain for unit in units)


def _powers(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2


def _has_run(gpus: Sequence[int], size: int) -> bool:
    """Return whether an aligned mesh of `size` is among these GPUs."""
    return any(set(range(gpu, gpu + size)) <= set(gpus) for gpu in gpus if gpu % size == 0)
