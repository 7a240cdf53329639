"""Monotone search: small clusters are also searched with fewer GPUs."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.problem import Node
from muxcluster.placement.search.draft import Draft
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.greedy import spend
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder

# Clusters with more ways of leaving GPUs out are searched only as they are.
MOST_SUBCLUSTERS = 40


def search_monotone(
    builder: UnitBuilder,
    nodes: Sequence[Node],
    search: Callable[[UnitBuilder], list[PlacedUnit]],
    end: float = math.inf,
) -> list[PlacedUnit]:
    """Return the layout of `search`, or a better one found with some GPUs left out and used later.

    The search is a heuristic. So that an added GPU never lowers its result, every cluster that this
    one could have grown from is searched too, if these are at most MOST_SUBCLUSTERS, and none
    after `end` (a moment of time.perf_counter). Raises DoesNotFit if no layout was found on any.
    """
    if prod(node.num_gpus + 1 for node in nodes) > MOST_SUBCLUSTERS:
        return search(builder)
    return _best(builder, tuple(nodes), search, end, {})


def _best(
    builder: UnitBuilder,
    nodes: tuple[Node, ...],
    search: Callable[[UnitBuilder], list[PlacedUnit]],
    end: float,
    known: dict[tuple[Node, ...], list[PlacedUnit] | DoesNotFit],
) -> list[PlacedUnit]:
    key = tuple(sorted(nodes, key=lambda node: (node.gpu.name, node.num_gpus)))
    if key not in known:
        known[key] = _searched(builder, key, search, end, known)
    found = known[key]
    if isinstance(found, DoesNotFit):
        raise found
    return found


def _searched(
    builder: UnitBuilder,
    nodes: tuple[Node, ...],
    search: Callable[[UnitBuilder], list[PlacedUnit]],
    end: float,
    known: dict[tuple[Node, ...], list[PlacedUnit] | DoesNotFit],
) -> list[PlacedUnit] | DoesNotFit:
    here = builder.within(kinds_of(nodes))
    layouts, refusals = [], []
    try:
        layouts.append(search(here))
    except DoesNotFit as refusal:
        refusals.append(refusal)
    for smaller in _one_gpu_less(nodes):
        if layouts and time.perf_counter() > end:
            break
        try:
            fewer = _best(builder, smaller, search, end, known)
        except DoesNotFit:
            continue
        draft = Draft(here, fewer)
        spend(draft)
        layouts += [draft.units, fewer]
    return max(layouts, key=here.rank) if layouts else refusals[0]


def _one_gpu_less(nodes: tuple[Node, ...]) -> list[tuple[Node, ...]]:
    found = []
    for position, node in enumerate(nodes):
        rest = (replace(node, num_gpus=node.num_gpus - 1),) if node.num_gpus > 1 else ()
        smaller = (*nodes[:position], *rest, *nodes[position + 1 :])
        if smaller:
            found.append(smaller)
    return found
