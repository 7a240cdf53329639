"""The prefix tree of a batch job, in arrays: which prompts share which leading tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.offline.prefix.sorting import shared_with_next, sorted_order


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """A compact prefix tree. A leaf is a prompt; a node is what two or more of them share.

    Leaves have a place, 0 to n - 1: prompts sorted by their tokens, equal ones by arrival. Nodes
    are numbered in preorder (a parent before its children, siblings as their leaves); node 0 is the
    root and shares nothing. The tree depends on the prompts, not on the order they came in.
    """

    order: NDArray[np.int64]  # int64 [n], number of the prompt at each place
    lengths: NDArray[np.int64]  # int64 [n], tokens of the prompt at each place
    leaf_node: NDArray[np.int64]  # int64 [n], deepest node above each leaf
    parent: NDArray[np.int64]  # int64 [m], 0 for the root
    # int64 [m], tokens from the start of the prompts to the end of the node.
    depth: NDArray[np.int64]
    # int64 [m]; the leaves below are at places `first` to `first + num_leaves - 1`.
    first: NDArray[np.int64]
    num_leaves: NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes, the root included."""
        return len(self.parent)

    @property
    def edge_tokens(self) -> NDArray[np.int64]:
        """Return the tokens that each node adds to its parent's, int64 [m]; 0 for the root only."""
        return self.depth - self.depth[self.parent]

    @property
    def prompt_tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def saved_tokens(self) -> int:
        """Return the tokens saved if every node is computed once: the optimum."""
        return int(self.edge_tokens @ (self.num_leaves - 1))

    def check(self) -> None:
        """Raise AssertionError where the arrays disagree."""
        inner, last = np.arange(1, self.num_nodes), self.first + self.num_leaves
        up = self.parent[1:]
        assert np.array_equal(np.sort(self.order), np.arange(len(self.order)))
        assert self.parent[0] == self.depth[0] == self.first[0] == 0
        assert self.num_leaves[0] == len(self.order)
        assert (up < inner).all() and (self.depth[1:] > self.depth[up]).all()
        assert (self.num_leaves[1:] >= 2).all()
        assert (self.first[1:] >= self.first[up]).all() and (last[1:] <= last[up]).all()
        # preorder: a node's leaves start where, or after, those of the node before it do
        assert (np.diff(self.first) >= 0).all()
        nodes, places = self.leaf_node, np.arange(len(self.order))
        assert (self.first[nodes] <= places).all() and (places < last[nodes]).all()
        assert (self.depth[nodes] <= self.lengths).all()


def build_tree(prompts: Prompts, granularity: int = 1, own_tokens: int = 0) -> PrefixTree:
    """Return the prefix tree of `prompts`, all for one model and one `cache_salt`.

    granularity: nodes end at multiples of it; the block size where only whole blocks are reused.
    own_tokens: so many last tokens of each prompt are never shared; an engine computes at least 1
        to have logits.
    """
    order = sorted_order(prompts)
    lengths = prompts.lengths[order]
    shared = shared_with_next(prompts, order)
    if own_tokens:
        most = np.maximum(lengths - own_tokens, 0)
        shared = np.minimum(shared, np.minimum(most[:-1], most[1:]))
    return _tree(order, lengths, shared // granularity * granularity)


def _tree(
    order: NDArray[np.int64], lengths: NDArray[np.int64], shared: NDArray[np.int64]
) -> PrefixTree:
    parent, depth, first, num_leaves, gap_node = _nodes(shared)
    num_leaves[0] = len(order)
    preorder = np.lexsort((-num_leaves, first))
    number = np.empty_like(preorder)
    number[preorder] = np.arange(len(preorder))
    # A leaf belongs to the deeper of the nodes that join it with its neighbours.
    gaps = np.concatenate(([0], gap_node, [0]))
    left, right = gaps[:-1], gaps[1:]
    leaf_node = np.where(depth[left] > depth[right], left, right)
    return PrefixTree(
        order,
        lengths,
        number[leaf_node],
        number[parent[preorder]],
        depth[preorder],
        first[preorder],
        num_leaves[preorder],
    )


def _nodes(shared: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Return parent, depth, first leaf and number of leaves of each node; the node of each gap.

    A gap is between two neighbouring leaves. A node is a run of gaps, as deep as the least shared
    among them; the gaps of that depth split it into the runs of the next level. All nodes of a
    level are found at once.
    """
    gap_node = np.zeros(len(shared), dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    levels = [(zero, zero, zero, zero)]
    gaps = np.flatnonzero(shared)
    above, num_nodes = np.zeros(len(gaps), dtype=np.int64), 1
    while len(gaps):
        starts = np.concatenate(([0], np.flatnonzero(np.diff(gaps) > 1) + 1))
        counts = np.diff(starts, append=len(gaps))
        depth = np.minimum.reduceat(shared[gaps], starts)
        levels.append((above[starts], depth, gaps[starts], counts + 1))
        node = np.repeat(np.arange(num_nodes, num_nodes + len(starts)), counts)
        splits = shared[gaps] == np.repeat(depth, counts)
        gap_node[gaps[splits]] = node[splits]
        gaps, above = gaps[~splits], node[~splits]
        num_nodes += len(starts)
    parent, depth, first, num_leaves = (np.concatenate(each) for each in zip(*levels, strict=True))
    return parent, depth, first, num_leaves, gap_node
