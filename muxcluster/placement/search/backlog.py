"""Batch work placed on a layout for interactive requests: replicas, moves, idle GPUs."""

import math
from collections.abc import Sequence

from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.greedy import spend
from muxcluster.placement.search.improve import improve
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder
from muxcluster.placement.search.start import effort


def with_backlogs(
    builder: UnitBuilder, units: Sequence[PlacedUnit], end: float = math.inf
) -> list[PlacedUnit]:
    """Return a layout that does more of the batch work and serves no less of the objective.

    units: a layout of the same problem without its batch work. The search goes on from there, so
    that batch work costs no interactive request (`UnitBuilder.rank` compares the objective first).
    end: moment of time.perf_counter at which the layout found by then is taken.
    """
    same = judged_anew(builder, units)
    if not builder.estimator.problem.backlog_tokens_per_s:
        return same
    draft = Draft(builder, same)
    spend(draft, end)
    start = max(same, draft.units, key=builder.rank)
    return improve(builder, start, most_estimates=effort(builder, start), end=end)


def judged_anew(builder: UnitBuilder, units: Sequence[PlacedUnit]) -> list[PlacedUnit]:
    """Return the same units with the estimates of another builder, whose problem differs in batch
    work alone."""
    found = [builder.with_offers(unit, unit.offers) for unit in units]
    assert all(unit is not None for unit in found), "batch work takes no memory from weights"
    return [unit for unit in found if unit is not None]
