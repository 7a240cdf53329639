"""The search from nothing: several greedy constructions, the best one improved."""

from collections.abc import Sequence

from placement.memory import DoesNotFit
from placement.search.baselines import by_weight
from placement.search.greedy import Draft, cover, first_refusal, spend
from placement.search.improve import improve
from placement.search.layout import Placed, Workshop, merit

_PRICES = (0.0, 0.5, 1.0, 2.0, 8.0)
"""Of a GPU, in parts of the demand per GPU. The highest makes models share whatever they lose,
which finds a place for all in a cluster that is short of memory."""


_LEAST_EFFORT = 6_000
_EFFORT_PER_MODEL = 15
_SERVED_EFFORT = 4
"""Where all rates are met the search only gains headroom: a quarter of the estimates do."""


def effort(workshop: Workshop, units: Sequence[Placed]) -> int:
    """Most estimates that improving `units` is worth."""
    most = _LEAST_EFFORT + _EFFORT_PER_MODEL * len(workshop.estimator.problem.demands)
    return most // (_SERVED_EFFORT if all(unit.estimate.load <= 1 for unit in units) else 1)


def search(workshop: Workshop, seed: int = 0) -> list[Placed]:
    """A good layout with every model in it.

    Raises DoesNotFit where a model fits on no mesh, or not all of them were found a place.
    """
    drafts = [draft for draft in _drafts(workshop) if draft is not None]
    if not drafts:
        raise _crowded_out(workshop)
    best = max(drafts, key=lambda draft: merit(draft.units))
    most = effort(workshop, best.units)
    return improve(workshop, best.units, most_estimates=most, seed=seed)


def _drafts(workshop: Workshop) -> list[Draft | None]:
    problem = workshop.estimator.problem
    per_gpu = sum(each.rate for each in problem.demands) / sum(
        kind.num_gpus for kind in workshop.kinds.values()
    )
    orders = (_by_need(workshop), by_weight(workshop))
    return [_draft(workshop, order, price * per_gpu) for price in _PRICES for order in orders]


def _draft(workshop: Workshop, order: Sequence[int], price: float) -> Draft | None:
    draft = Draft(workshop)
    demands = workshop.estimator.problem.demands
    if not cover(draft, [(index, demands[index].rate) for index in order], price):
        return None
    spend(draft)
    return draft


def _by_need(workshop: Workshop) -> list[int]:
    """Models by the GPU time that they ask for, most first."""
    needs = [_need(workshop, index) for index in range(len(workshop.estimator.problem.demands))]
    return sorted(range(len(needs)), key=lambda index: needs[index], reverse=True)


def _need(workshop: Workshop, index: int) -> float:
    """GPUs that would serve all of a model's rate, on the mesh that does it with the fewest.

    Raises DoesNotFit where no mesh takes the model.
    """
    rate = workshop.estimator.problem.demands[index].rate
    alone = [workshop.unit(gpu, tp, [(index, rate)]) for gpu, tp in workshop.meshes()]
    needs = [unit.tp * unit.estimate.load for unit in alone if unit is not None]
    if not needs:
        raise first_refusal(workshop, index)
    return min(needs)


def _crowded_out(workshop: Workshop) -> DoesNotFit:
    """The refusal when each model fits alone but not all together: the last one of the densest
    packing, and what the emptiest mesh lacks for it."""
    demands = workshop.estimator.problem.demands
    draft = Draft(workshop)
    price = _PRICES[-1] * sum(each.rate for each in demands)
    for index in by_weight(workshop):
        if not cover(draft, [(index, demands[index].rate)], price):
            return _least_missing(draft, index)
    raise AssertionError("the densest packing found a place for every model after all")


def _least_missing(draft: Draft, index: int) -> DoesNotFit:
    rate = draft.workshop.estimator.problem.demands[index].rate
    refusals = [
        error
        for unit in draft.units
        if (
            error := draft.workshop.estimator.refusal(
                unit.gpu, unit.tp, [*unit.offers, (index, rate)]
            )
        )
    ]
    known = [each.missing_bytes for each in refusals if each.missing_bytes is not None]
    name = draft.workshop.estimator.problem.demands[index].name
    return DoesNotFit(
        name,
        f"the other models leave no room for it on any of {len(draft.units)} meshes",
        min(known) if known else None,
    )
