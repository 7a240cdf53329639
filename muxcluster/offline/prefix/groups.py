"""Prefix groups: the requests that share one chosen prefix, and the order groups run in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.ranges import joined_ranges
from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class PrefixGroups:
    """A partition of the requests of a tree."""

    # int64 [g], node whose tokens the group shares; 0 (the root) for a request that shares nothing
    # and is a group of its own.
    prefix_node: NDArray[np.int64]
    prefix_tokens: NDArray[np.int64]  # int64 [g]
    # int64 [g]; group i holds requests[start[i]:start[i] + size[i]].
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    # int64 [n], prompt numbers group by group, within a group as in the tree, so that what some of
    # a group share beyond its prefix is computed by one and found by the next.
    requests: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.size)

    @property
    def saved_tokens(self) -> int:
        """Return the tokens saved if each group's prefix is computed once."""
        return int(self.prefix_tokens @ (self.size - 1))


def group_by_prefix(tree: PrefixTree, chosen: NDArray[np.bool_]) -> PrefixGroups:
    """Group requests by the deepest `chosen` node (bool [m]) above each, in tree order."""
    nodes = np.arange(tree.num_nodes)
    nearest = np.where(chosen, nodes, tree.parent)
    while not np.array_equal(further := nearest[nearest], nearest):
        nearest = further
    prefix = nearest[tree.leaf_node]
    alone = prefix == 0
    # a request that shares nothing has a key of its own, after those of the nodes
    key = np.where(alone, tree.num_nodes + np.arange(len(prefix)), prefix)
    by_group = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[by_group], prepend=-1))
    in_tree = np.argsort(by_group[starts])
    sizes = np.diff(starts, append=len(key))[in_tree]
    starts = starts[in_tree]
    places = by_group[joined_ranges(starts, sizes)]
    found = prefix[by_group[starts]]
    return PrefixGroups(
        found,
        tree.depth[found],
        np.cumsum(sizes) - sizes,
        sizes,
        tree.order[places],
    )


def order_by_decoding(
    groups: PrefixGroups, lengths: NDArray[np.int64], output_tokens: NDArray[np.float64]
) -> PrefixGroups:
    """Sort groups by falling decoding per token to prefill (BatchLLM Eq. 4), stably.

    R = sum of output tokens / (prefix tokens + sum of distinct tokens), with estimated lengths
    where the paper has a constant.

    lengths, output_tokens: int64 and float64 [n], by prompt number.
    """
    outputs = np.add.reduceat(output_tokens[groups.requests], groups.start)
    prompts = np.add.reduceat(lengths[groups.requests], groups.start)
    ratio = outputs / (prompts - groups.prefix_tokens * (groups.size - 1))
    order = np.argsort(-ratio, kind="stable")
    sizes = groups.size[order]
    return PrefixGroups(
        groups.prefix_node[order],
        groups.prefix_tokens[order],
        np.cumsum(sizes) - sizes,
        sizes,
        groups.requests[joined_ranges(groups.start[order], sizes)],
    )
