"""Output lengths before they are known: a sample is run first, the tree tells the rest."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.ranges import range_sums
from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class OutputLengths:
    """Output tokens of the requests of a tree, known or expected; float64 [n] each, by place.

    mean: 1 or more. square: the mean of the square, which reads of keys and values grow with: a
    request that yields 10 or 1,000 tokens costs far more than one that yields 505.
    """

    mean: NDArray[np.float64]
    square: NDArray[np.float64]


def known_lengths(tokens: NDArray[np.float64]) -> OutputLengths:
    """Lengths without doubt: output tokens by place, float64 [n]."""
    return OutputLengths(tokens, tokens * tokens)


SAMPLE_SHARE = 0.01
"""Of the requests, those that run before the plan is made; their results are kept."""
_LEAST_ALONE = 8


def sample_places(
    tree: PrefixTree, rng: np.random.Generator, share: float = SAMPLE_SHARE
) -> NDArray[np.int64]:
    """Places of the requests to run first, int64, at least one.

    Evenly spaced over the leaves, from a random start: a sub-tree has its share of the sample,
    which a sample drawn request by request would leave to chance. Of the requests that share
    nothing there are at least a few: no others tell how long these are.
    """
    count = min(len(tree.order), max(1, round(share * len(tree.order))))
    places = _spread(np.arange(len(tree.order)), count, rng)
    alone = np.flatnonzero(tree.leaf_node == 0)
    few = min(len(alone), count, _LEAST_ALONE)
    if np.count_nonzero(tree.leaf_node[places] == 0) >= few:
        return places
    return np.union1d(places, _spread(alone, few, rng))


def _spread(places: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` of them, evenly spaced."""
    start = rng.integers(len(places))
    spread: NDArray[np.int64] = places[(np.arange(count) * len(places) + start) // count]
    return spread


def estimate_lengths(
    tree: PrefixTree,
    known: NDArray[np.float64],
    prior_weight: float = 0.0,
    so_far: NDArray[np.float64] | None = None,
) -> OutputLengths:
    """What is known is kept, the rest is estimated. Call it again as results arrive.

    A sub-tree without a known length takes the mean of its siblings' means, else what its parent
    takes, and so on up. Siblings of its own kind are asked first, leaves or nodes: at the root, a
    request that shares nothing is like others that do not, not like the largest family, which
    most of the sample falls into.

    known: float64 [n] by place, NaN where not known; at least one must be.
    prior_weight: above 0 a mean is drawn towards that of the level above as by so many further
        results, so that few of them say little.
    so_far: float64 [n] by place, tokens of requests that run and are not known, else 0. A mean is
        that of all tokens seen over the requests that ended, as for a constant chance to end with
        the next token: a few requests that go on and on make their kind a long one.
    """
    assert not np.isnan(known).all(), "no output length is known"
    running = np.zeros_like(known) if so_far is None else so_far
    mean = _estimates(tree, known, running, prior_weight)
    square = _estimates(tree, known * known, running * running, prior_weight)
    return OutputLengths(mean, np.maximum(square, mean * mean))


def _estimates(
    tree: PrefixTree,
    known: NDArray[np.float64],
    running: NDArray[np.float64],
    prior_weight: float,
) -> NDArray[np.float64]:
    """Any number of each leaf, from those that are not NaN; float64 [n].

    running: float64 [n], what counts among the values without being one.
    """
    found = ~np.isnan(known)
    values = np.where(found, known, running)
    of_leaves = _leaf_sums(tree, found, values)
    counts = range_sums(found.astype(np.float64), tree.first, tree.num_leaves)
    below = np.flatnonzero(counts[1:]) + 1
    means = range_sums(values, tree.first, tree.num_leaves)[below] / counts[below]
    of_nodes = _sums(tree, tree.parent[below], means)

    for_leaves, for_nodes = [0.0] * tree.num_nodes, [0.0] * tree.num_nodes
    all_mean = float(values.sum() / counts[0])
    for node, parent in enumerate(tree.parent.tolist()):
        prior = for_nodes[parent] if node else all_mean
        means_of = [
            (total + prior_weight * prior) / (count + prior_weight)
            for total, count in (of_leaves[node], of_nodes[node])
            if count
        ]
        for_leaves[node] = means_of[0] if means_of else prior
        for_nodes[node] = means_of[-1] if means_of else prior
    return np.where(found, known, np.array(for_leaves)[tree.leaf_node])


def _leaf_sums(
    tree: PrefixTree, found: NDArray[np.bool_], values: NDArray[np.float64]
) -> list[tuple[float, int]]:
    """As `_sums`, of leaves; counted are those found, and one where none is but some have run."""
    totals = np.bincount(tree.leaf_node, values, minlength=tree.num_nodes)
    counts = np.bincount(tree.leaf_node[found], minlength=tree.num_nodes)
    counts = np.maximum(counts, totals > 0)
    return list(zip(totals.tolist(), counts.tolist(), strict=True))


def _sums(
    tree: PrefixTree, parents: NDArray[np.int64], values: NDArray[np.float64]
) -> list[tuple[float, int]]:
    """Sum and number of the children's `values` for each node."""
    totals = np.bincount(parents, values, minlength=tree.num_nodes)
    counts = np.bincount(parents, minlength=tree.num_nodes)
    return list(zip(totals.tolist(), counts.tolist(), strict=True))
