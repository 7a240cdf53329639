"""Baseline placements: one model a mesh, and most free memory first."""

from collections.abc import Sequence

from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder
from muxcluster.placement.search.refusals import first_refusal


def spatial(builder: UnitBuilder) -> list[PlacedUnit]:
    """Give every model a mesh of its own: the fewest GPUs that hold it, large models first; then
    double the mesh of the fullest unit, repeatedly, until GPUs or needs end (MuxServe §4.1).

    Raises DoesNotFit if there are too few GPUs for a mesh each.
    """
    draft = Draft(builder)
    for index in builder.by_weight:
        unit = _smallest(draft, index)
        if unit is None:
            raise _no_mesh(draft, index)
        draft.open(unit)
    while _grown(draft):
        pass
    return draft.units


def memory_greedy(builder: UnitBuilder) -> list[PlacedUnit]:
    """Put models, by rate, on the one of several equal meshes with most free memory (the paper's
    placement ablation, MuxServe §4.4). The meshes are the smallest on which all find a place.

    Raises DoesNotFit if there are none.
    """
    demands = builder.estimator.problem.demands
    order = sorted(range(len(demands)), key=lambda index: -demands[index].rate)
    sizes = sorted({tp for _, tp in builder.meshes})
    refusals = []
    for tp in sizes:
        try:
            return _filled(builder, order, tp)
        except DoesNotFit as refusal:
            refusals.append(refusal)
    raise refusals[-1]


def _smallest(draft: Draft, index: int) -> PlacedUnit | None:
    rate = draft.builder.estimator.problem.demands[index].rate
    for gpu, tp in sorted(draft.builder.meshes, key=lambda mesh: mesh[1]):
        if draft.room.fits(gpu, tp):
            unit = draft.builder.unit(gpu, tp, [(index, rate)])
            if unit is not None:
                return unit
    return None


def _no_mesh(draft: Draft, index: int) -> DoesNotFit:
    """Return an error: no mesh of the cluster holds the model, or all of them are taken."""
    if all(draft.builder.unit(gpu, tp, [(index, 1.0)]) is None for gpu, tp in draft.builder.meshes):
        return first_refusal(draft.builder, index)
    name = draft.builder.estimator.problem.demands[index].name
    return DoesNotFit(name, f"no GPUs are left for a mesh of its own ({len(draft.units)} taken)")


def _grown(draft: Draft) -> bool:
    """Double the mesh of the fullest unit that can grow; False if that helps none."""
    order = sorted(
        range(len(draft.units)), key=lambda each: draft.units[each].estimate.load, reverse=True
    )
    for position in order:
        unit = draft.units[position]
        grown = draft.builder.unit(unit.gpu, 2 * unit.tp, unit.offers)
        if grown is not None and _is_better(grown, unit) and draft.can_grow(unit):
            draft.replace(position, grown)
            return True
    return False


def _is_better(grown: PlacedUnit, unit: PlacedUnit) -> bool:
    """Compare by what is served, then by load: a baseline asks nothing for its GPUs."""
    new, old = grown.estimate, unit.estimate
    return (new.value, -new.load) > (old.value, -old.load)


def _filled(builder: UnitBuilder, order: Sequence[int], tp: int) -> list[PlacedUnit]:
    draft = Draft(builder)
    for index in order:
        _put_where_memory_is(draft, index, tp)
    return draft.units


def _put_where_memory_is(draft: Draft, index: int, tp: int) -> None:
    builder = draft.builder
    demand = builder.estimator.problem.demands[index]
    opened = [
        unit
        for gpu, size in builder.meshes
        if size == tp and draft.room.fits(gpu, tp)
        if (unit := builder.unit(gpu, tp, [(index, demand.rate)])) is not None
    ]
    if opened:
        draft.open(max(opened, key=lambda unit: unit.gpu.memory_bytes))
        return
    joined = [
        (old.estimate.kv_blocks, position, unit)
        for position, old in enumerate(draft.units)
        if (unit := builder.with_offers(old, [*old.offers, (index, demand.rate)]))
    ]
    if not joined:
        raise DoesNotFit(demand.name, f"none of {len(draft.units)} meshes of {tp} GPUs has room")
    _, position, unit = max(joined, key=lambda option: option[0])
    draft.replace(position, unit)
