"""Local improvement: remove a few units, rebuild them, keep the result if it is better.

This moves, swaps, splits and merges models and meshes (large neighbourhood search, Shaw 1998); the
order of models and the price of a GPU are drawn at random each time.
"""

import random
from collections.abc import Sequence

from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.greedy import cover, spend
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, is_better, merit

_MOST_TORN_DOWN = 4
_LEAST_ROUNDS, _ROUNDS_PER_UNIT = 60, 8
_PRICES = (0.0, 0.25, 0.5, 1.0, 2.0)


def improve(
    builder: UnitBuilder, units: Sequence[PlacedUnit], *, most_estimates: int, seed: int = 0
) -> list[PlacedUnit]:
    """Return a layout at least as good as `units`.

    Ends after `most_estimates` new estimates, or after eight rounds a unit (60 at least) in a row
    without improvement. The same arguments give the same answer.
    """
    draw = random.Random(seed)
    best, best_rank = list(units), builder.rank(units)
    start = builder.estimator.num_estimates
    stale = 0
    while stale < max(_LEAST_ROUNDS, _ROUNDS_PER_UNIT * len(best)):
        if builder.estimator.num_estimates - start > most_estimates:
            break
        found = _rebuilt(builder, best, draw)
        rank = None if found is None else builder.rank(found)
        if found is not None and rank is not None and is_better(rank, best_rank):
            best, best_rank, stale = found, rank, 0
        else:
            stale += 1
    return best


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
    pieces = sorted(rates.items(), key=lambda piece: -piece[1] * draw.uniform(0.3, 1.0))
    if cover(draft, pieces, draw.choice(_PRICES) * mean_price(units)) is not None:
        return None
    spend(draft)
    return draft.units


def _units_to_rebuild(units: Sequence[PlacedUnit], draw: random.Random) -> list[int]:
    """Choose a unit, weighted by its strain, and up to three others."""
    number = min(len(units), draw.randint(1, _MOST_TORN_DOWN))
    most = max(unit.strain for unit in units)
    first = draw.choices(range(len(units)), [0.1 * most + unit.strain for unit in units])[0]
    others = [position for position in range(len(units)) if position != first]
    return [first, *draw.sample(others, number - 1)]


def mean_price(units: Sequence[PlacedUnit]) -> float:
    """Merit per GPU."""
    return merit(units) / max(1, sum(unit.tp for unit in units))
