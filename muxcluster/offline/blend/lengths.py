"""Estimates of output lengths: from a sample that runs first, by position in the prefix tree."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.ranges import range_sums
from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class OutputLengths:
    """Output tokens of the requests of a tree, known or expected; float64 [n] each, by place."""

    mean: NDArray[np.float64]  # 1 or more
    # Mean of the square, which reads of keys and values grow with: a request that yields 10 or
    # 1,000 tokens costs far more than one that yields 505.
    square: NDArray[np.float64]


def known_lengths(tokens: NDArray[np.float64]) -> OutputLengths:
    """Return lengths that are certain. tokens: float64 [n], outputs by place."""
    return OutputLengths(tokens, tokens * tokens)


SAMPLE_SHARE = 0.01  # of the requests run before the plan is made; their results are kept
_LEAST_ALONE = 8  # requests of a sample that share nothing


def sample_places(
    tree: PrefixTree, rng: np.random.Generator, share: float = SAMPLE_SHARE
) -> NDArray[np.int64]:
    """Return the places of the requests to run first, int64, at least one.

    They are evenly spaced over the leaves from a random start, so that every sub-tree has its share
    of the sample. At least 8 share nothing (if there are so many): only such requests tell how long
    others of their kind are.
    """
    count = min(len(tree.order), max(1, round(share * len(tree.order))))
    places = _spread(np.arange(len(tree.order)), count, rng)
    alone = np.flatnonzero(tree.leaf_node == 0)
    few = min(len(alone), count, _LEAST_ALONE)
    if np.count_nonzero(tree.leaf_node[places] == 0) >= few:
        return places
    return np.union1d(places, _spread(alone, few, rng))


def _spread(places: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    start = rng.integers(len(places))
    spread: NDArray[np.int64] = places[(np.arange(count) * len(places) + start) // count]
    return spread


def estimate_lengths(
    tree: PrefixTree,
    known: NDArray[np.float64],
    prior_weight: float = 0.0,
    so_far: NDArray[np.float64] | None = None,
) -> OutputLengths:
    """Keep known lengths and estimate the others. Call it again as results arrive.

    A sub-tree without a known length takes the mean of its siblings' means, else what its parent
    takes, and so on up. Siblings of its own kind (leaves or nodes) come first: at the root, a
    request that shares nothing is like others that share nothing, not like the largest family,
    which most of the sample falls into.

    known: float64 [n] by place, NaN where not known; at least one must be.
    prior_weight: the mean of the level above counts as so many further results.
    so_far: float64 [n] by place, tokens so far of running requests of unknown length, else 0. A
        mean is all tokens seen over the requests that ended (the estimate for a constant chance to
        end with the next token), so a few requests that do not end make their kind a long one.
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
    """Estimate a quantity for each leaf from the known ones (not NaN); float64 [n].

    running: float64 [n], amounts that add to sums of the quantity but not to counts.
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
    """Return `_sums` over leaves, counting those found; 1 where none is but some have run."""
    totals = np.bincount(tree.leaf_node, values, minlength=tree.num_nodes)
    counts = np.bincount(tree.leaf_node[found], minlength=tree.num_nodes)
    counts = np.maximum(counts, totals > 0)
    return list(zip(totals.tolist(), counts.tolist(), strict=True))


def _sums(
    tree: PrefixTree, parents: NDArray[np.int64], values: NDArray[np.float64]
) -> list[tuple[float, int]]:
    totals = np.bincount(parents, values, minlength=tree.num_nodes)
    counts = np.bincount(parents, minlength=tree.num_nodes)
    return list(zip(totals.tolist(), counts.tolist(), strict=True))
