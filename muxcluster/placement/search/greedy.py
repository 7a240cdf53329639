"""Greedy construction: place every model, then use idle GPUs where they help most (Alg. 1).

The reference enumerates mesh groups and fills each. Here meshes are opened as models need them,
under a price per GPU, so that symmetric groups are never evaluated twice and replicas come from the
same step.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from muxcluster.placement.estimator import Offer
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.layout import EASY, PlacedUnit, UnitBuilder

# Most units that a model is tried on: those with most room by a cheap estimate.
_MOST_JOINED = 12
_FEWEST_JOINED = 3  # the same, for thousands of models
_FOR_REPLICA = 0.75  # part of its gain that a replica counts with, beside moves of whole models


@dataclass(frozen=True, slots=True)
class _Option:
    """A place for a model: a unit that replaces the one at `position`, or a new one (None)."""

    unit: PlacedUnit
    position: int | None
    gain: float


def cover(draft: Draft, pieces: Sequence[Offer], price: float) -> int | None:
    """Give each piece (model, rate) the place of greatest gain less `price` per GPU opened.

    Returns the first model without a place, at which it stops; None if all have one.
    """
    for index, rate in pieces:
        options = [
            *_joined(draft, index, rate),
            *_opened(draft, index, rate, price),
        ]
        if not options:
            return index
        best = max(options, key=lambda option: option.gain)
        if best.position is None:
            draft.open(best.unit)
        else:
            draft.replace(best.position, best.unit)
    return None


def _joined(draft: Draft, index: int, rate: float) -> Iterable[_Option]:
    for position in draft.roomiest(_FEWEST_JOINED if draft.builder.has_many else _MOST_JOINED):
        old = draft.units[position]
        offers = [offer for offer in old.offers if offer[0] != index]
        offers.append((index, rate + old.rate_of(index)))
        unit = draft.builder.with_offers(old, offers)
        if unit is not None:
            yield _Option(unit, position, draft.builder.gain([unit], [old]))


def _opened(draft: Draft, index: int, rate: float, price: float) -> Iterable[_Option]:
    for unit in draft.builder.opened(index, rate):
        if draft.room.fits(unit.gpu, unit.tp):
            yield _Option(unit, None, draft.builder.gain([unit], []) - price * unit.tp)


def spend(draft: Draft, end: float = math.inf) -> None:
    """Use idle GPUs while that helps: a replica of some model, a larger mesh for a unit, or one
    more unit like it, where models take turns.

    Each step takes the change with most gain per GPU; none is begun after `end`, a moment of
    time.perf_counter.
    """
    while time.perf_counter() <= end:
        sizes = [mesh for mesh in draft.builder.meshes if draft.room.fits(*mesh)]
        if not sizes:
            return
        best: tuple[float, int, tuple[PlacedUnit, ...]] | None = None
        for position in _wanting(draft.units):
            for rate_per_gpu, new in _relief(draft, position, sizes):
                if best is None or rate_per_gpu > best[0]:
                    best = (rate_per_gpu, position, new)
        if best is None or best[0] <= 0:
            return
        _, position, (changed, *opened) = best
        draft.replace(position, changed)
        for unit in opened:
            draft.open(unit)


def _wanting(units: Sequence[PlacedUnit]) -> list[int]:
    """Return the units that idle GPUs could help most: those that miss most of the objective, then
    most of their batch work, then the fullest."""

    def need(position: int) -> tuple[float, float, float]:
        unit = units[position]
        return unit.missed, unit.undone, unit.strain

    return nlargest(_MOST_JOINED, range(len(units)), key=need)


def _relief(
    draft: Draft, position: int, sizes: Sequence[tuple[Gpu, int]]
) -> Iterable[tuple[float, tuple[PlacedUnit, ...]]]:
    """Return (gain per GPU, units in place of this one): a part of one model's rate moved to a new
    mesh, the whole model moved there, the whole unit on more GPUs, or one more like it."""
    unit, builder = draft.units[position], draft.builder
    for gpu, tp in sizes:
        for new in replicas(builder, unit, gpu, tp):
            more = sum(len(each.offers) for each in new) > len(unit.offers)
            gain = builder.gain(new, [unit])
            yield gain * (_FOR_REPLICA if more else 1.0) / tp, new
    if draft.can_grow(unit):
        grown = builder.unit(unit.gpu, 2 * unit.tp, unit.offers)
        if grown is not None:
            yield builder.gain([grown], [unit]) / unit.tp, (grown,)
    beside = builder.one_more(unit) if (unit.gpu, unit.tp) in sizes else None
    if beside is not None:
        yield builder.relief(beside, unit) / unit.tp, (beside,)


def replicas(
    builder: UnitBuilder, unit: PlacedUnit, gpu: Gpu, tp: int
) -> Iterable[tuple[PlacedUnit, ...]]:
    """Yield (the relieved unit, a new unit) for each model of `unit` and parts of its rate.

    A unit with little strain, whose batch work is done, gives models away whole or not at all, and
    so are models that may be parked: a replica would be asked for more rarely, and be parked more
    often.
    """
    for index, rate in unit.offers:
        whole = builder.unit(gpu, tp, [(index, rate)])
        if whole is None:
            continue
        others = [offer for offer in unit.offers if offer[0] != index]
        if others:
            rest = builder.with_offers(unit, others)
            if rest is not None:
                yield rest, whole
        is_easy = unit.strain <= EASY and not unit.undone
        if is_easy or builder.estimator.problem.demands[index].may_park:
            continue
        for part in _parts(unit, whole, rate):
            new = builder.unit(gpu, tp, [(index, part)])
            left = builder.with_offers(unit, [*others, (index, rate - part)])
            if new is not None and left is not None:
                yield left, new


def _parts(unit: PlacedUnit, whole: PlacedUnit, rate: float) -> Iterable[float]:
    """Yield rates to move: in proportion to the capacity of both meshes; all that the new one can
    serve."""
    load, there = unit.estimate.whole_load, whole.estimate.whole_load
    balanced = rate * load / (load + there)
    full = rate / there
    yield balanced
    if full < rate and abs(full - balanced) > 1e-3 * rate:
        yield full
