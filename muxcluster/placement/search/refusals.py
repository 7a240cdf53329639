"""Reasons why models find no place."""

from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import (
    DoesNotFit,
    DoNotFitTogether,
    least_missing,
    usable_bytes,
)
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.layout import UnitBuilder


def first_refusal(builder: UnitBuilder, index: int) -> DoesNotFit:
    """Return why no mesh takes the model alone: the refusal with the least missing memory, and what
    keeps it from wider meshes, if they exist."""
    found = [
        (tp, error)
        for gpu, tp in builder.meshes
        if (error := builder.estimator.refusal(gpu, tp, [(index, 1.0)])) is not None
    ]
    short = [each for each in found if each[1].missing_bytes is not None]
    undivided = [each for each in found if each[1].missing_bytes is None]
    if not short:
        return undivided[0][1]
    tp, nearest = min(short, key=lambda each: each[1].missing_bytes or 0)
    wider = next((error for size, error in undivided if size > tp), None)
    if wider is None:
        return nearest
    reason = f"{nearest.reason}; {wider.reason}"
    return DoesNotFit(nearest.model, reason, nearest.missing_bytes)


def crowded_out(draft: Draft, index: int) -> DoesNotFit:
    """Return why the model, which fits alone, has no place in `draft`, which has no GPUs left: the
    memory that all models lack together, or else what the nearest mesh lacks for it."""
    shortage = cluster_shortage(draft.builder, index)
    if shortage is not None:
        return shortage
    estimator = draft.builder.estimator
    demands = estimator.problem.demands
    refusals = [
        estimator.refusal(unit.gpu, unit.tp, [*unit.offers, (index, demands[index].rate)])
        for unit in draft.units
    ]
    known = [each for each in refusals if each is not None]
    nearest = least_missing(known)
    name = demands[index].name
    reason = (
        f"the meshes of the others leave no GPUs for {name}, and none of {len(known)} takes it "
        f"too: {nearest.reason}"
    )
    return DoNotFitTogether(len(demands), name, reason, nearest.missing_bytes)


def cluster_shortage(builder: UnitBuilder, index: int) -> DoNotFitTogether | None:
    """Return the memory that all models lack together, None if they lack none.

    Counted are weights and tables, each on the mesh that needs the least; of models that may be
    parked, the largest. `index` is the model that the error names.
    """
    problem = builder.estimator.problem
    demands = problem.demands
    sizes = [builder.least_bytes(each) for each in range(len(demands))]
    movable = [size for size, each in zip(sizes, demands, strict=True) if each.may_park]
    least = sum(sizes) - sum(movable) + max(movable, default=0)
    kinds = builder.kinds.values()
    usable = sum(usable_bytes(kind.gpu, 1) * kind.num_gpus for kind in kinds)
    if least <= usable:
        return None
    num_gpus = sum(kind.num_gpus for kind in kinds)
    reason = (
        f"{least / GIB:.2f} GiB of weights and tables alone on {num_gpus} GPU(s), "
        f"{usable / GIB:.2f} usable"
    )
    return DoNotFitTogether(len(demands), demands[index].name, reason, least - usable)
