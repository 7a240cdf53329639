"""Compute and memory seconds of every sub-tree, its shared tokens computed once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.lengths import OutputLengths
from muxcluster.offline.prefix.ranges import range_sums
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Resource seconds of the nodes (float64 [m]) or the leaves (float64 [n]) of a tree.

    Tokens above a node or leaf are not counted: a node has its own edge and all that is below.
    """

    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]

    @property
    def density(self) -> NDArray[np.float64]:
        """Compute over memory: above 1, the work is bound by compute."""
        return self.compute_s / self.memory_s


def leaf_work(
    tree: PrefixTree,
    model: ResourceModel,
    outputs: OutputLengths,
    shared_reads: NDArray[np.float64] | None = None,
) -> Work:
    """Return the work of each leaf without its shared prefix.

    shared_reads: float64 [n] by place, the share of a request's reads that an attention kernel
        saves by reading shared prefixes once for all; none where no such kernel runs.
    """
    lengths = tree.lengths.astype(np.float64)
    shared = tree.depth[tree.leaf_node].astype(np.float64)
    memory = model.read_s(lengths, outputs.mean, outputs.square)
    if shared_reads is not None:
        memory = memory * (1.0 - shared_reads)
    return Work(model.prefill_s(shared, lengths) + model.decode_s(outputs.mean), memory)


def node_work(tree: PrefixTree, model: ResourceModel, leaves: Work) -> Work:
    """Return the work of each node's sub-tree; that of the root is the job's."""
    edges = _edge_s(tree, model)
    # in preorder the nodes below one follow it, up to the first that starts behind its leaves
    ends = np.searchsorted(tree.first, tree.first + tree.num_leaves)
    nodes = np.arange(tree.num_nodes)
    compute = range_sums(edges, nodes, ends - nodes)
    compute += range_sums(leaves.compute_s, tree.first, tree.num_leaves)
    return Work(compute, range_sums(leaves.memory_s, tree.first, tree.num_leaves))


def even_parts(
    tree: PrefixTree, model: ResourceModel, leaves: Work, among: NDArray[np.bool_]
) -> Work:
    """Return the work of each leaf with an even part of what it shares; the sum is the whole's.

    among: bool [m], the nodes whose tokens are divided among the leaves below.
    """
    parts = np.where(among, _edge_s(tree, model) / tree.num_leaves, 0.0)
    length = len(tree.order) + 1
    begun = np.bincount(tree.first, parts, minlength=length)
    begun -= np.bincount(tree.first + tree.num_leaves, parts, minlength=length)
    return Work(leaves.compute_s + np.cumsum(begun)[:-1], leaves.memory_s)


def _edge_s(tree: PrefixTree, model: ResourceModel) -> NDArray[np.float64]:
    depth = tree.depth.astype(np.float64)
    return model.prefill_s(depth[tree.parent], depth)
