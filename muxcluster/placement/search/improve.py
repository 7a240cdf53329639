"""Local improvement: remove a few units, rebuild them, keep the result if it is better.

This moves, swaps, splits and merges models and meshes (large neighbourhood search, Shaw 1998); the
order of models and the price of a GPU are drawn at random each time.
"""

import math
import random
import time
from collections.abc import Sequence

from muxcluster.placement.estimator import Offer
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.greedy import cover, spend
from muxcluster.placement.search.layout import EASY, PlacedUnit, UnitBuilder, is_better, merit

_MOST_TORN_DOWN = 4
_LEAST_ROUNDS, _ROUNDS_PER_UNIT = 60, 8
# Prices of a GPU, in parts of the merit per GPU; and, as they decide where all is served, in parts
# of the strain's cost per GPU.
_PRICES = (0.0, 0.25, 0.5, 1.0, 2.0)
_STRAIN_PRICES = (0.25, 0.5, 1.0, 2.0, 4.0)
# Parts of a model's rate that are moved from a full unit to another.
_PARTS = (1.0, 0.5, 0.25, 0.1)
_MOST_TARGETS = 8
_LARGE = 0.2  # GPUs that a rate needs before it is divided among units
_MOST_PIECES = 3


def improve(
    builder: UnitBuilder,
    units: Sequence[PlacedUnit],
    *,
    most_estimates: int,
    end: float = math.inf,
    seed: int = 0,
) -> list[PlacedUnit]:
    """Return a layout at least as good as `units`.

    Ends after `most_estimates` new estimates, or after eight rounds a unit (60 at least) in a row
    without improvement; or at the moment `end` (of time.perf_counter). The same arguments give the
    same answer unless that moment comes first.
    """
    draw = random.Random(seed)
    if time.perf_counter() > end:
        return list(units)
    start = builder.estimator.num_estimates
    best = _relieved(builder, units, most_estimates=most_estimates // 4, end=end)
    best_rank = builder.rank(best)
    stale = 0
    while stale < max(_LEAST_ROUNDS, _ROUNDS_PER_UNIT * len(best)):
        if builder.estimator.num_estimates - start > most_estimates or time.perf_counter() > end:
            break
        found = _rebuilt(builder, best, draw)
        rank = None if found is None else builder.rank(found)
        if found is not None and rank is not None and is_better(rank, best_rank):
            best, best_rank, stale = found, rank, 0
        else:
            stale += 1
    best = _relieved(builder, best, most_estimates=most_estimates // 4, end=end)
    draft = Draft(builder, best)
    spend(draft, end)  # where GPUs are left
    return _narrowed(builder, max(draft.units, best, key=builder.rank), end)


def _rebuilt(
    builder: UnitBuilder, units: Sequence[PlacedUnit], draw: random.Random
) -> list[PlacedUnit] | None:
    torn = set(_units_to_rebuild(units, draw))
    rates: dict[int, float] = {}
    for position in torn:
        for index, rate in units[position].offers:
            rates[index] = rates.get(index, 0.0) + rate
    kept = [unit for position, unit in enumerate(units) if position not in torn]
    draft = Draft(builder, kept)
    pieces = [piece for item in rates.items() for piece in _pieces(builder, item, draw)]
    pieces.sort(key=lambda piece: -piece[1] * draw.uniform(0.3, 1.0))
    prices = [part * mean_price(units) for part in _PRICES]
    prices += [part * _strain_price(units) for part in _STRAIN_PRICES]
    if cover(draft, pieces, draw.choice(prices)) is not None:
        return None
    spend(draft)
    return draft.units


def _pieces(builder: UnitBuilder, whole: Offer, draw: random.Random) -> list[Offer]:
    """Divide the rate of a model that needs a good part of a GPU into up to three equal ones."""
    index, rate = whole
    number = draw.randint(1, _MOST_PIECES) if _need(builder, index, rate) > _LARGE else 1
    return [(index, rate / number)] * number


def _need(builder: UnitBuilder, index: int, rate: float) -> float:
    """Return the GPUs that a part of a model's rate needs."""
    return builder.need(index) * rate / builder.estimator.problem.demands[index].rate


def _units_to_rebuild(units: Sequence[PlacedUnit], draw: random.Random) -> list[int]:
    """Choose a unit, weighted by its strain (by its undone batch work, where there is some), and up
    to three others."""
    number = min(len(units), draw.randint(1, _MOST_TORN_DOWN))
    needs = [unit.strain for unit in units]
    if any(unit.undone for unit in units):
        needs = [unit.undone for unit in units]
    most = max(needs)
    first = draw.choices(range(len(units)), [0.1 * most + need for need in needs])[0]
    others = [position for position in range(len(units)) if position != first]
    return [first, *draw.sample(others, number - 1)]


def mean_price(units: Sequence[PlacedUnit]) -> float:
    """Merit per GPU."""
    return merit(units) / max(1, sum(unit.num_gpus for unit in units))


def _strain_price(units: Sequence[PlacedUnit]) -> float:
    """Cost of the strain per GPU."""
    cost = sum(unit.goal - unit.merit for unit in units)
    return cost / max(1, sum(unit.num_gpus for unit in units))


def _relieved(
    builder: UnitBuilder, units: Sequence[PlacedUnit], *, most_estimates: int, end: float
) -> list[PlacedUnit]:
    """Move models, or parts of their rates, from the fullest unit to others while that helps.

    Rebuilding places each model's whole rate; this is what divides a popular one among units that
    have other models too.
    """
    best = list(units)
    start = builder.estimator.num_estimates
    while builder.estimator.num_estimates - start <= most_estimates and time.perf_counter() <= end:
        better = _relief(builder, best)
        if better is None:
            break
        best = better
    return best


def _relief(builder: UnitBuilder, units: list[PlacedUnit]) -> list[PlacedUnit] | None:
    """Return the best layout with one such move, None if none is better."""
    full = max(range(len(units)), key=lambda at: (units[at].undone, units[at].strain))
    targets = sorted(
        (position for position in range(len(units)) if position != full),
        key=lambda position: units[position].crowding,
    )[:_MOST_TARGETS]
    best, best_rank = None, builder.rank(units)
    for index, rate in units[full].offers:
        can_split = units[full].undone > 0 or (
            units[full].strain >= EASY and _need(builder, index, rate) >= _LARGE
        )
        for target in targets:
            for part in _PARTS if can_split or units[target].rate_of(index) else _PARTS[:1]:
                pair = _moved(builder, units[full], units[target], (index, rate * part))
                if pair is None:
                    continue
                left, there = pair
                moved = list(units)
                moved[target] = there
                moved[full : full + 1] = [] if left is None else [left]
                rank = builder.rank(moved)
                if is_better(rank, best_rank):
                    best, best_rank = moved, rank
    return best


def _narrowed(builder: UnitBuilder, units: Sequence[PlacedUnit], end: float) -> list[PlacedUnit]:
    """Replace wide meshes by one of half the width, or by two that serve half of the rates each,
    where that is better; those that are left at `end` stay."""
    best = list(units)
    for wide in (unit for unit in units if unit.tp > 1):
        if time.perf_counter() > end:
            break
        others = [unit for unit in best if unit is not wide]
        for part in (1.0, 0.5):
            offers = [(index, rate * part) for index, rate in wide.offers]
            half = builder.unit(wide.gpu, wide.tp // 2, offers, wide.count)
            if half is None:
                continue
            halves = [half] * round(1 / part)
            if part < 1 and half.estimate.weight_memory is not None:
                # models that take turns on equal units: one cache
                both = builder.unit(wide.gpu, half.tp, wide.offers, 2 * wide.count)
                if both is None:
                    continue
                halves = [both]
            narrow = [*others, *halves]
            if is_better(builder.rank(narrow), builder.rank(best)):
                best = narrow
    return best


def _moved(
    builder: UnitBuilder, source: PlacedUnit, target: PlacedUnit, moved: Offer
) -> tuple[PlacedUnit | None, PlacedUnit] | None:
    """Return both units after `moved` went from one to the other; None if it does not fit. The
    first is None if nothing is left there."""
    index, rate = moved
    left = source.rate_of(index) - rate
    offers = [offer for offer in source.offers if offer[0] != index]
    if left > 1e-9 * rate:
        offers.append((index, left))
    there = [offer for offer in target.offers if offer[0] != index]
    joined = builder.with_offers(target, [*there, (index, rate + target.rate_of(index))])
    if joined is None:
        return None
    if not offers:
        return None, joined
    rest = builder.with_offers(source, offers)
    return None if rest is None else (rest, joined)
