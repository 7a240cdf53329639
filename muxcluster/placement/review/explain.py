"""Explanation of a model's place in a plan: alternatives, their cost, and spare rate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import (
    Estimator,
    Offer,
    UnitEstimate,
    equal_units,
    offers_of,
)
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import block_bytes, weight_bytes
from muxcluster.placement.names import nearest
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.review.assess import fullest

MOST_UNITS = 5
_SERVED = 1 - 1e-9
_BISECTIONS = 24
_MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of a node, used by a unit or idle."""

    unit: str | None  # the id of the unit on them, None if they are idle
    node: str
    gpus: tuple[int, ...]
    gpu: Gpu

    @property
    def tp(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Alternative:
    """The plan with the model moved to `place`."""

    place: Place
    throughput: float | None = None  # throughput, value: requests/s and objective of the whole plan
    value: float | None = None
    # Load of that unit, 1 = full; all three are None if the model does not fit (see `refusal`)
    load: float | None = None
    refusal: str | None = None
    missing_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One model on one unit of a plan."""

    model: str
    place: Place
    neighbours: tuple[str, ...]
    # offered, served, full_rate: requests/s; the last is the greatest offer at which the unit still
    # serves all its models in full
    offered: float
    served: float
    full_rate: float
    weight_bytes: int  # weight_bytes, kv_bytes: its own
    kv_bytes: int
    load: float  # load, load_without: of the unit with it and without it (0: it is alone)
    load_without: float
    marginal: float  # additional requests/s that the unit serves with it
    fullest: str  # the resource that is used most
    throughput: float  # throughput, value: of the whole plan
    value: float
    alternatives: tuple[Alternative, ...]  # the best first


@dataclass(frozen=True, slots=True)
class _Judged:
    """A unit of the plan with what it is offered and its estimate."""

    place: Place
    offers: tuple[Offer, ...]
    estimate: UnitEstimate


def explain(
    problem: Problem, plan: Plan, model: str, most: int = MOST_UNITS
) -> tuple[Explanation, ...]:
    """Explain each unit that has the model, at most `most` of them.

    Raises ValueError if the plan has no such model, or the estimator cannot judge the plan.
    """
    names = {each.name for unit in plan.units for each in unit.models}
    if model not in names:
        raise ValueError(f"the plan has no model {model!r}{nearest(model, names)}")
    estimator = Estimator(problem)
    units = [_judged(estimator, plan, unit) for unit in plan.units]
    index = [demand.name for demand in problem.demands].index(model)
    homes = [here for here in units if any(each == index for each, _ in here.offers)]
    return tuple(_explained(estimator, units, here, index) for here in homes[:most])


def _judged(estimator: Estimator, plan: Plan, unit: PlannedUnit) -> _Judged:
    offers = offers_of(estimator.problem, plan, unit)
    for node in estimator.problem.nodes:
        if node.name == unit.node:
            place = Place(unit.id, node.name, unit.gpus, node.gpu)
            num_units = len(equal_units(plan, unit))
            estimate = estimator.unit(node.gpu, unit.tp, offers, num_units)
            if estimate is None:
                raise ValueError(f"unit {unit.id}: {estimator.refusal(node.gpu, unit.tp, offers)}")
            return _Judged(place, offers, estimate)
    raise ValueError(f"unit {unit.id} is on node {unit.node!r}, which the cluster has not")


def _explained(
    estimator: Estimator, units: Sequence[_Judged], here: _Judged, index: int
) -> Explanation:
    problem, found = estimator.problem, here.estimate
    demands = {tenant.cost.demand.name: tenant.cost.demand for tenant in found.tenants}
    demand = problem.demands[index]
    position = list(demands).index(demand.name)
    tenant = found.tenants[position]
    left = _without(estimator, here, index)
    per_block = block_bytes(list(demands.values()), problem.limits)
    return Explanation(
        model=demand.name,
        place=here.place,
        neighbours=tuple(name for name in demands if name != demand.name),
        offered=tenant.rate,
        served=tenant.rate * found.served[position],
        full_rate=_full_rate(estimator, here, index),
        weight_bytes=weight_bytes(demand, here.place.tp),
        kv_bytes=found.quotas[position] * per_block,
        load=found.load,
        load_without=left.load if left else 0.0,
        marginal=found.throughput - (left.throughput if left else 0.0),
        fullest=fullest(found),
        throughput=sum(each.estimate.throughput for each in units),
        value=sum(each.estimate.value for each in units),
        alternatives=_alternatives(estimator, units, here, index),
    )


def _without(estimator: Estimator, unit: _Judged, index: int) -> UnitEstimate | None:
    """Estimate the unit without the model; None if it is alone."""
    offers = [offer for offer in unit.offers if offer[0] != index]
    if not offers:
        return None
    return estimator.unit(unit.place.gpu, unit.place.tp, offers, unit.estimate.num_units)


def _full_rate(estimator: Estimator, unit: _Judged, index: int) -> float:
    """Find the rate by bisection, to six digits; 0 if the unit is too full for any rate."""
    others = [offer for offer in unit.offers if offer[0] != index]
    (rate,) = (rate for each, rate in unit.offers if each == index)

    def is_served(wanted: float) -> bool:
        offers = [*others, (index, wanted)]
        found = estimator.unit(unit.place.gpu, unit.place.tp, offers, unit.estimate.num_units)
        return found is not None and min(found.served) >= _SERVED

    low, high = 0.0, rate
    for _ in range(_MOST_DOUBLINGS):
        if not is_served(high):
            break
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return low if low > 1e-6 * rate else 0.0


def _alternatives(
    estimator: Estimator, units: Sequence[_Judged], here: _Judged, index: int
) -> tuple[Alternative, ...]:
    """Return every other unit and each size of idle mesh: greatest value first, then least load,
    then least missing memory."""
    left = _without(estimator, here, index)
    others = [each for each in units if each is not here]
    spent = {(each.place.node, gpu) for each in others for gpu in each.place.gpus}
    if left is not None:
        spent |= {(here.place.node, gpu) for gpu in here.place.gpus}
    value = sum(each.estimate.value for each in others) + (left.value if left else 0.0)
    served = sum(each.estimate.throughput for each in others) + (left.throughput if left else 0.0)
    (offer,) = (offer for offer in here.offers if offer[0] == index)
    idle = (place for place in _idle(estimator.problem, spent) if place.gpus != here.place.gpus)
    # of equal units, whose requests go where the weights are, each has the model already
    found = [
        _moved(estimator, each.place, each, offer, (served, value))
        for each in others
        if each.estimate.num_units == 1 or index not in dict(each.offers)
    ]
    found += [_moved(estimator, place, None, offer, (served, value)) for place in idle]
    return tuple(sorted(found, key=_rank))


def _moved(
    estimator: Estimator,
    place: Place,
    there: _Judged | None,
    offer: Offer,
    rest: tuple[float, float],
) -> Alternative:
    """rest: (throughput, value) of the plan with the model taken out, the place as it is; of equal
    units all get a part of it."""
    index, rate = offer
    num_units = 1 if there is None else there.estimate.num_units
    offers = {} if there is None else dict(there.offers)
    offers[index] = offers.get(index, 0.0) + rate / num_units
    asked = list(offers.items())
    found = estimator.unit(place.gpu, place.tp, asked, num_units)
    if found is None:
        refusal = estimator.refusal(place.gpu, place.tp, asked)
        missing = None if refusal is None else refusal.missing_bytes
        return Alternative(place, refusal=str(refusal), missing_bytes=missing)
    served, value = rest
    if there is not None:
        served -= num_units * there.estimate.throughput
        value -= num_units * there.estimate.value
    served += num_units * found.throughput
    return Alternative(place, served, value + num_units * found.value, found.load)


def _idle(problem: Problem, spent: set[tuple[str, int]]) -> Iterator[Place]:
    """The first idle mesh of each kind and size, aligned as the planner lays them."""
    seen: set[tuple[str, int]] = set()
    for node in problem.nodes:
        tp = 1
        while tp <= node.num_gpus:
            for first in range(0, node.num_gpus - tp + 1, tp):
                gpus = tuple(range(first, first + tp))
                if (node.gpu.name, tp) in seen or any((node.name, gpu) in spent for gpu in gpus):
                    continue
                seen.add((node.gpu.name, tp))
                yield Place(None, node.name, gpus, node.gpu)
            tp *= 2


def _rank(each: Alternative) -> tuple[bool, float, float]:
    if each.value is None or each.load is None:
        missing = float("inf") if each.missing_bytes is None else float(each.missing_bytes)
        return True, missing, 0.0
    return False, -each.value, each.load
