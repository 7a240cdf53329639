"""Layouts with equal units, on which models that may be parked take turns.

Step by step they are hard to find: two such units must be many before they are better than each
model on a GPU of its own, with others.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from muxcluster.placement.hardware import Gpu
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.greedy import cover
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder

_MOST_CUTS = 3  # between large and small models
_MOST_COUNTS = 8  # of GPUs for a group of models


def equal_units_drafts(builder: UnitBuilder, end: float) -> Iterator[Draft]:
    """Yield layouts in which all models that may be parked are on equal units, or large and small
    ones on units of their own, with any numbers of units; the other models where they find room.

    None where there are very many models, and no more from `end` on (of time.perf_counter).
    """
    demands = builder.estimator.problem.demands
    movable = [index for index in builder.by_weight if demands[index].may_park]
    others = [(i, each.rate) for i, each in enumerate(demands) if not each.may_park]
    if len(movable) < 2 or builder.has_many:
        return
    for gpu in builder.kinds:
        for groups in _groups(builder, movable):
            for units in _units(builder, gpu, groups, end):
                draft = Draft(builder, units)
                if cover(draft, others, 0.0) is None:
                    yield draft


def _groups(builder: UnitBuilder, movable: Sequence[int]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield all models as one group, and in two groups by weight, where that falls most.

    movable: the heaviest first.
    """
    yield [movable]
    sizes = [builder.least_bytes(index) for index in movable]
    falls = {place: sizes[place - 1] / sizes[place] for place in range(1, len(sizes))}
    cuts = sorted((place for place in falls if falls[place] > 1), key=lambda place: -falls[place])
    for cut in cuts[:_MOST_CUTS]:
        yield [movable[:cut], movable[cut:]]


def _units(
    builder: UnitBuilder, gpu: Gpu, groups: Sequence[Sequence[int]], end: float
) -> Iterator[list[PlacedUnit]]:
    """Yield equal units for each group, with numbers of units that fit on the GPUs together."""
    if time.perf_counter() > end:
        return
    widths = [_width(builder, gpu, group) for group in groups]
    if not all(widths):
        return
    for counts in _counts(builder.kinds[gpu].num_gpus, widths):
        used = Counter[int]()
        for tp, count in zip(widths, counts, strict=True):
            used[tp] += count
        if time.perf_counter() > end or not builder.kinds[gpu].holds(used):
            continue
        found = [
            builder.unit(gpu, tp, _offers(builder, group), count)
            for group, tp, count in zip(groups, widths, counts, strict=True)
        ]
        units = [unit for unit in found if unit is not None]
        if len(units) == len(groups):
            yield units


def _width(builder: UnitBuilder, gpu: Gpu, group: Sequence[int]) -> int:
    """Return the GPUs of the smallest mesh that takes each model of the group, 0 if none does."""
    for tp in sorted(builder.kinds[gpu].slots):
        if builder.unit(gpu, tp, _offers(builder, group)) is not None:
            return tp
    return 0


def _offers(builder: UnitBuilder, group: Sequence[int]) -> list[tuple[int, float]]:
    demands = builder.estimator.problem.demands
    return [(index, demands[index].rate) for index in group]


def _counts(num_gpus: int, widths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield numbers of units of one group, or of two that have all GPUs."""
    most = num_gpus // widths[0]
    steps = sorted(
        {max(1, round(most * part / _MOST_COUNTS)) for part in range(1, 1 + _MOST_COUNTS)}
    )
    for count in steps:
        if len(widths) == 1:
            yield [count]
        elif (left := (num_gpus - count * widths[0]) // widths[1]) > 0:
            yield [count, left]
