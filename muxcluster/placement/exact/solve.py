"""Exact mode: set partition over (mesh, models) columns, and a bound on every plan.

The partition is complete for equal splits of the rates if all its columns can be enumerated;
otherwise columns come from pricing (column generation, Gilmore & Gomory 1961, with a greedy
pricing), and the answer is the best layout of those found. The bound is the relaxation's, over all
layouts and all splits.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence

from muxcluster.placement.exact.columns import Pool
from muxcluster.placement.exact.partition import Partition
from muxcluster.placement.exact.pieces import Split, splits_of
from muxcluster.placement.exact.relaxation import upper_bound
from muxcluster.placement.memory import DoesNotFit, DoNotFitTogether, weight_bytes
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, merit, value
from muxcluster.placement.search.refusals import cluster_shortage, first_refusal

_MOST_COLUMNS = 40_000
# Columns with few models, if all are far too many; pricing finds the others.
_FIRST_COLUMNS = 4_000
# Sets of pieces per allowed column; with more, not even memory limits leave few enough columns.
_HOPELESS = 20.0
_CLOSE = 1e-6  # relative; a layout this close to its bound is optimal
_SLACK = 1e-6  # requests/s; error within the solver's tolerances


def solve_exact(
    builder: UnitBuilder, start: Sequence[PlacedUnit], time_limit_s: float
) -> tuple[list[PlacedUnit], float]:
    """Return (a layout at least as good as `start`, a value that no layout exceeds).

    start: every model of the problem at its whole rate, or empty. Raises DoesNotFit if no layout
    was found that holds all models; it names the largest, and what all lack together.
    """
    end = time.perf_counter() + time_limit_s
    found = upper_bound(builder, time_limit_s / 3, value(start))
    bound = float("inf") if found is None else found
    best = list(start)
    if not best or value(best) < bound * (1 - _CLOSE):
        better = _partitioned(builder, start, end)
        if better and (not best or builder.rank(better) > builder.rank(best)):
            best = better
    if not best:
        raise _unplaceable(builder)
    return best, max(bound, value(best))


def _partitioned(
    builder: UnitBuilder, start: Sequence[PlacedUnit], end: float
) -> list[PlacedUnit] | None:
    """Return the best layout of the columns that were found in time."""
    splits = splits_of(builder, start)
    pool = Pool(builder, sorted({piece for split in splits for piece in split.pieces()}))
    for unit in start:
        pool.add(unit)
    if not pool.enumerate(_budget(builder, splits), _part_of(end, 0.3)):
        _generate(builder, pool, splits, _part_of(end, 0.5))
    columns = _worthwhile(builder, pool, splits, start, end)
    left = end - time.perf_counter()
    return Partition(builder, splits, columns).chosen(left)


def _budget(builder: UnitBuilder, splits: Sequence[Split]) -> int:
    """Number of columns to enumerate."""
    choices = Counter(index for split in splits for index, _ in split.pieces())
    sets = len(builder.meshes) * math.prod(1.0 + number for number in choices.values())
    return _MOST_COLUMNS if sets <= _HOPELESS * _MOST_COLUMNS else _FIRST_COLUMNS


def _generate(builder: UnitBuilder, pool: Pool, splits: Sequence[Split], end: float) -> None:
    """Add columns that improve the linear program, until there are none or the time is `end`."""
    while time.perf_counter() < end:
        prices = Partition(builder, splits, pool.columns).prices(end - time.perf_counter())
        if prices is None or pool.price(prices, end) == 0:
            return


def _worthwhile(
    builder: UnitBuilder,
    pool: Pool,
    splits: Sequence[Split],
    start: Sequence[PlacedUnit],
    end: float,
) -> list[PlacedUnit]:
    """Return the columns that a layout better than `start` can have."""
    columns = pool.columns
    if not start:
        return columns
    prices = Partition(builder, splits, columns).prices(_part_of(end, 0.3) - time.perf_counter())
    if prices is None:
        return columns
    least = merit(start) - prices.optimum - _SLACK
    kept = {id(unit) for unit in start}
    return [each for each in columns if prices.profit(each) >= least or id(each) in kept]


def _part_of(end: float, part: float) -> float:
    """Return the moment when this part of the time until `end` is over."""
    now = time.perf_counter()
    return now + part * (end - now)


def _unplaceable(builder: UnitBuilder) -> DoesNotFit:
    """Name a model that no mesh holds, or the memory that all lack together."""
    demands = builder.estimator.problem.demands
    for index in range(len(demands)):
        if all(builder.unit(gpu, tp, [(index, 1.0)]) is None for gpu, tp in builder.meshes):
            return first_refusal(builder, index)
    largest = max(range(len(demands)), key=lambda index: weight_bytes(demands[index]))
    reason = "no division among the meshes was found"
    without = DoNotFitTogether(len(demands), demands[largest].name, reason, None)
    return cluster_shortage(builder, largest) or without
