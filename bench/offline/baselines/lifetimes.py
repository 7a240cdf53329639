"""Lifetimes of prefixes in a plan: from the first request below a node to the last."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """When each node of a tree is needed, if requests start one after the other."""

    # int64 [m], positions in the sequence, both included: the node's tokens are pinned from
    # first_use to last_use and then freed. The root is always needed and is empty.
    first_use: NDArray[np.int64]
    last_use: NDArray[np.int64]
    # Most tokens held at once: pinned prefixes and the rest of one prompt. With this much memory
    # the sequence computes every node once.
    peak_tokens: int


def prefix_lifetimes(tree: PrefixTree, requests: NDArray[np.int64]) -> Lifetimes:
    """Return lifetimes if the prompts `requests` (int64 [n], each once) run in this sequence."""
    position = np.empty_like(requests)
    position[requests] = np.arange(len(requests))
    by_place = np.append(position[tree.order], 0)  # reduceat ends ranges at an index that exists
    edges = np.stack((tree.first, tree.first + tree.num_leaves), axis=1).ravel()
    first = np.minimum.reduceat(by_place, edges)[::2]
    last = np.maximum.reduceat(by_place, edges)[::2]
    change = np.zeros(len(requests) + 1, dtype=np.int64)
    np.add.at(change, first, tree.edge_tokens)
    np.add.at(change, last + 1, -tree.edge_tokens)
    rest = tree.lengths - tree.depth[tree.leaf_node]
    own = np.empty_like(requests)
    own[position[tree.order]] = rest
    return Lifetimes(first, last, int((np.cumsum(change)[:-1] + own).max()))
