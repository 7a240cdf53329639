"""Reasons why models find no place."""

from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.layout import UnitBuilder


def first_refusal(builder: UnitBuilder, index: int) -> DoesNotFit:
    """Return why no mesh takes the model alone: the refusal with the least missing memory."""
    refusals = [
        error
        for gpu, tp in builder.meshes
        if (error := builder.estimator.refusal(gpu, tp, [(index, 1.0)])) is not None
    ]
    return min(refusals, key=lambda each: (each.missing_bytes is None, each.missing_bytes or 0))


def crowded_out(draft: Draft, index: int) -> DoesNotFit:
    """Return what the nearest mesh of `draft` lacks to take the model too; there are no GPUs for
    another mesh."""
    estimator = draft.builder.estimator
    demand = estimator.problem.demands[index]
    refusals = [
        estimator.refusal(unit.gpu, unit.tp, [*unit.offers, (index, demand.rate)])
        for unit in draft.units
    ]
    missing = [each.missing_bytes for each in refusals if each and each.missing_bytes is not None]
    reason = f"the other models leave no room for it on any of {len(draft.units)} meshes"
    return DoesNotFit(demand.name, reason, min(missing) if missing else None)
