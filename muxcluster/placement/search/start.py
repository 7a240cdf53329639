"""Search without a current plan: several greedy constructions, of which the best is improved."""

import math
import time
from collections.abc import Sequence
from itertools import product

from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.equal import equal_units_drafts
from muxcluster.placement.search.greedy import cover, spend
from muxcluster.placement.search.improve import improve
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder
from muxcluster.placement.search.refusals import cluster_shortage, crowded_out, first_refusal

# Prices of a GPU, in parts of the demand's worth per GPU. At the highest, models share at any
# loss: it is the most likely to place all models in a cluster that is short of memory.
_PRICES = (0.0, 0.5, 1.0, 2.0, 8.0, 1e6)
# The same, in parts of what a full GPU's strain costs: they decide where all is served.
_STRAIN_PRICES = (0.02, 0.2)
_LEAST_EFFORT = 6_000
_EFFORT_PER_MODEL = 15
# If all rates are met, the search only gains headroom: a quarter of the estimates is enough.
_SERVED_EFFORT = 4
# An estimate with batch work takes as long as ten without, and this search starts from a layout.
_BACKLOG_EFFORT = 20


def effort(builder: UnitBuilder, units: Sequence[PlacedUnit]) -> int:
    """Return how many estimates the improvement of `units` is worth."""
    problem = builder.estimator.problem
    most = _LEAST_EFFORT + _EFFORT_PER_MODEL * len(problem.demands)
    if problem.backlog_tokens_per_s:
        return most // _BACKLOG_EFFORT
    return most // (_SERVED_EFFORT if all(unit.estimate.load <= 1 for unit in units) else 1)


def search(builder: UnitBuilder, end: float = math.inf) -> list[PlacedUnit]:
    """Return a good layout with every model in it.

    end: moment (of time.perf_counter) from which on the best of the layouts found so far is
    returned, as soon as there is one. Raises DoesNotFit if a model fits on no mesh, or no layout
    has a place for all; then it names the model that the densest packing left out, or the memory
    that the cluster lacks.
    """
    per_gpu = builder.total_worth / sum(kind.num_gpus for kind in builder.kinds.values())
    drafts: list[Draft] = []
    refusals: list[DoesNotFit] = []
    orders = _by_need(builder), builder.by_weight
    shortage = cluster_shortage(builder, orders[1][0])
    if shortage is not None:
        raise shortage
    prices = [price * per_gpu for price in _PRICES]
    prices += [price * builder.strain_cost for price in _STRAIN_PRICES]
    # of many models, or many of one unit, one layout may take all the time: the price that usually
    # finds one comes first
    is_slow = builder.has_many or any(each.may_park for each in builder.estimator.problem.demands)
    prices.sort(key=lambda price: (is_slow and price < per_gpu, price))
    for price, order in product(prices, orders):
        if drafts and time.perf_counter() > end:
            break
        found = _drafted(builder, order, price, end)
        if isinstance(found, Draft):
            drafts.append(found)
        else:
            refusals.append(found)
    drafts += equal_units_drafts(builder, end if drafts else math.inf)
    if not drafts:
        raise refusals[-1]
    best = max(drafts, key=lambda draft: builder.rank(draft.units)).units
    return improve(builder, best, most_estimates=effort(builder, best), end=end)


def _drafted(
    builder: UnitBuilder, order: Sequence[int], price: float, end: float
) -> Draft | DoesNotFit:
    """Build a layout, or return why its first model without a place has none."""
    draft = Draft(builder)
    demands = builder.estimator.problem.demands
    left = cover(draft, [(index, demands[index].rate) for index in order], price)
    if left is not None:
        return crowded_out(draft, left)
    spend(draft, end)
    return draft


def _by_need(builder: UnitBuilder) -> list[int]:
    """Return the models by the GPU time that they ask for, most first.

    Raises DoesNotFit if no mesh takes one of them.
    """
    needs = [builder.need(index) for index in range(len(builder.estimator.problem.demands))]
    for index, need in enumerate(needs):
        if math.isinf(need):
            raise first_refusal(builder, index)
    return sorted(range(len(needs)), key=lambda index: needs[index], reverse=True)
