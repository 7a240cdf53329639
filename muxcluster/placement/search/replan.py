"""Replanning: moves cost, so a new layout must be worth them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.placement.estimator import Offer, equal_units, offers_of
from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.greedy import cover, spend
from muxcluster.placement.search.improve import improve, mean_price
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, merit, singles

HYSTERESIS = 0.02  # share of the merit that another layout must gain before models move
# Or, at no less of the objective, the factor by which its headroom must be greater; headroom beyond
# ENOUGH counts as ENOUGH, as no model should move for what nobody asks for.
HEADROOM_HYSTERESIS = 1.25
ENOUGH = 2.0
# Or, at no less of the objective, the share of all batch work that it must do more.
BACKLOG_HYSTERESIS = 0.1
LOAD_BYTES_PER_S = 2e9  # assumed rate of loading weights from disk or network into a GPU
HORIZON_S = 1800.0  # assumed life of a plan, over which the losses of its moves are spread


@dataclass(frozen=True, slots=True)
class Kept:
    """A unit of the current plan under the new problem, or all units equal to it; None if it is
    impossible there, or among those of an earlier one."""

    old: PlannedUnit
    unit: PlacedUnit | None


def continued(
    builder: UnitBuilder, current: Plan, fresh: Sequence[PlacedUnit], *, most_estimates: int
) -> list[PlacedUnit]:
    """Return the repaired layout of `current`, that layout improved, or `fresh`.

    The latter two must beat the first by HYSTERESIS, BACKLOG_HYSTERESIS or HEADROOM_HYSTERESIS; of
    several, the one with the greatest merit less its moves is taken.
    """
    kept = kept_units(builder, current)
    mended = _repaired(builder, kept)
    if mended is None:
        return list(fresh)
    improved = improve(builder, mended, most_estimates=most_estimates)
    worthy = [
        (merit(each) - _move_cost(builder, kept, each), each)
        for each in (improved, list(fresh))
        if _is_worth_moves(builder, kept, mended, each)
    ]
    return max(worthy, key=lambda option: option[0])[1] if worthy else mended


def _is_worth_moves(
    builder: UnitBuilder,
    kept: Sequence[Kept],
    mended: Sequence[PlacedUnit],
    other: Sequence[PlacedUnit],
) -> bool:
    least = merit(mended) + HYSTERESIS * abs(merit(mended))
    if merit(other) - _move_cost(builder, kept, other) > least:
        return True
    if builder.rank(other)[0] < builder.rank(mended)[0]:
        return False
    tokens = BACKLOG_HYSTERESIS * builder.estimator.problem.backlog_tokens_per_s
    more = _done(other) - _done(mended)
    if tokens and abs(more) >= tokens:
        return more > 0
    return _headroom(other) >= HEADROOM_HYSTERESIS * _headroom(mended)


def _done(units: Sequence[PlacedUnit]) -> float:
    return sum(unit.done for unit in units)


def _headroom(units: Sequence[PlacedUnit]) -> float:
    return min(ENOUGH, 1 / max(unit.strain for unit in units))


def kept_units(builder: UnitBuilder, current: Plan) -> list[Kept]:
    """Estimate each unit of the plan on the same mesh, at the rates of the problem."""
    found: list[Kept] = []
    done: set[str] = set()
    for old in current.units:
        equal = [] if old.id in done else equal_units(current, old)
        able = [
            each
            for each in equal
            if each.id not in done and _has_place(builder, each) and _is_alike(builder, each, old)
        ]
        unit = _kept(builder, current, able)
        if unit is None and len(able) > 1 and old in able:
            able = [old]  # they do not make one cache at these rates, or were planned apart
            unit = _kept(builder, current, able)
        done |= {each.id for each in able}
        found.append(Kept(old, unit))
    return found


def _is_alike(builder: UnitBuilder, each: PlannedUnit, other: PlannedUnit) -> bool:
    kinds = {node.name: node.gpu for node in builder.estimator.problem.nodes}
    return kinds.get(each.node) == kinds.get(other.node)


def _has_place(builder: UnitBuilder, old: PlannedUnit) -> bool:
    nodes = builder.estimator.problem.nodes
    return any(old.node == node.name and max(old.gpus) < node.num_gpus for node in nodes)


def _kept(builder: UnitBuilder, current: Plan, equal: Sequence[PlannedUnit]) -> PlacedUnit | None:
    problem = builder.estimator.problem
    known = {demand.name for demand in problem.demands}
    rates: dict[int, float] = {}
    for old in equal:
        models = tuple(model for model in old.models if model.name in known)
        unit = old.model_copy(update={"models": models})
        for index, rate in offers_of(problem, current, unit):
            rates[index] = rates.get(index, 0.0) + rate
    if not rates:
        return None
    gpu = next(node.gpu for node in problem.nodes if node.name == equal[0].node)
    return builder.unit(gpu, equal[0].tp, rates.items(), len(equal))


def _repaired(builder: UnitBuilder, kept: Sequence[Kept]) -> list[PlacedUnit] | None:
    """Return the kept units, with all models that are in none of them placed again."""
    units = [each.unit for each in kept if each.unit is not None]
    rates = [demand.rate for demand in builder.estimator.problem.demands]
    for unit in units:
        for index, rate in unit.offers:
            rates[index] -= rate
    lost = [(index, rate) for index, rate in enumerate(rates) if rate > 1e-9]
    if not lost:
        return units
    draft = Draft(builder, units)
    if cover(draft, lost, mean_price(units)) is not None:
        return None
    spend(draft)
    return draft.units


def _move_cost(builder: UnitBuilder, kept: Sequence[Kept], units: Sequence[PlacedUnit]) -> float:
    """Merit lost while weights are loaded: rates of their models x seconds, over the horizon."""
    problem = builder.estimator.problem
    lost = 0.0
    placed = singles(units)
    for unit, old in zip(placed, matched(builder, kept, placed), strict=True):
        there = set() if old is None else {model.name for model in old.models}
        for index, rate in unit.offers:
            demand = problem.demands[index]
            if demand.name not in there:
                lost += rate * weight_bytes(demand) / LOAD_BYTES_PER_S
    return lost / HORIZON_S


def with_executions_kept(
    builder: UnitBuilder, units: Sequence[PlacedUnit], before: Sequence[PlannedUnit | None]
) -> list[PlacedUnit]:
    """Return the units, each with the execution that it has now, unless another serves more by
    HYSTERESIS: a change loads the weights of all its models again.

    before: by unit, the unit of the current plan that it goes on from.
    """
    return [
        unit if old is None else _with_execution_kept(builder, unit, old)
        for unit, old in zip(units, before, strict=True)
    ]


def _with_execution_kept(builder: UnitBuilder, unit: PlacedUnit, old: PlannedUnit) -> PlacedUnit:
    names = {builder.estimator.problem.demands[index].name for index, _ in unit.offers}
    if old.execution is None or names != {model.name for model in old.models}:
        return unit
    num_units = unit.estimate.num_units
    found = builder.estimator.unit_as(old.execution, unit.gpu, unit.tp, unit.offers, num_units)
    if found is None or found.value < unit.estimate.value * (1 - HYSTERESIS):
        return unit
    return replace(unit, estimate=found)


def matched(
    builder: UnitBuilder, kept: Sequence[Kept], units: Sequence[PlacedUnit]
) -> list[PlannedUnit | None]:
    """Match each unit to the current unit that becomes it: an equal mesh with most bytes of the
    same weights; None if no weights are shared."""
    problem = builder.estimator.problem
    nodes = {node.name: node for node in problem.nodes}
    pairs = [
        (_shared_bytes(builder, unit.offers, each.old), position, number)
        for position, unit in enumerate(units)
        for number, each in enumerate(kept)
        if each.old.tp == unit.tp
        and each.old.node in nodes
        and nodes[each.old.node].gpu == unit.gpu
        and max(each.old.gpus) < nodes[each.old.node].num_gpus
    ]
    found: list[PlannedUnit | None] = [None] * len(units)
    taken: set[int] = set()
    for shared, position, number in sorted(pairs, key=lambda pair: -pair[0]):
        if shared > 0 and found[position] is None and number not in taken:
            found[position] = kept[number].old
            taken.add(number)
    return found


def _shared_bytes(builder: UnitBuilder, offers: Sequence[Offer], old: PlannedUnit) -> int:
    there = {model.name for model in old.models}
    demands = [builder.estimator.problem.demands[index] for index, _ in offers]
    return sum(weight_bytes(demand) for demand in demands if demand.name in there)
