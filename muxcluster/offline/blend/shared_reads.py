"""KV reads that requests save where attention reads a shared prefix once for all of them."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.lengths import OutputLengths
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel


def shared_reads(
    tree: PrefixTree,
    model: ResourceModel,
    outputs: OutputLengths,
    size_bytes: float,
    least_tokens: int,
) -> NDArray[np.float64]:
    """Return the share of each request's reads that it saves; float64 [n] by place, in [0, 1).

    Of the requests below a node, as many decode together as `size_bytes` of KV hold beside their
    prefix; each reads an even part of the prefix. Groups have one level, as in the kernel: of the
    prefixes above a request, the one that saves most counts.

    least_tokens: shorter prefixes are not read together; 0: no such kernel runs.
    """
    if least_tokens == 0:
        return np.zeros(len(tree.order))
    together = np.minimum(tree.num_leaves, _most_together(tree, model, outputs, size_bytes))
    spared = np.where(tree.depth >= least_tokens, tree.depth * (1 - 1 / together), 0.0)
    best: list[float] = spared.tolist()
    for node, parent in enumerate(tree.parent.tolist()):
        best[node] = max(best[node], best[parent])
    saved = np.array(best)[tree.leaf_node] * outputs.mean
    read = tree.lengths * outputs.mean + outputs.square / 2
    share: NDArray[np.float64] = saved / read
    return share


def _most_together(
    tree: PrefixTree, model: ResourceModel, outputs: OutputLengths, size_bytes: float
) -> NDArray[np.float64]:
    """Return how many requests of each node fit into memory with its prefix; float64 [m], ≥ 1."""
    held = tree.lengths + outputs.square / outputs.mean / 2
    sums = np.concatenate(([0.0], np.cumsum(held)))
    total = sums[tree.first + tree.num_leaves] - sums[tree.first]
    own = np.maximum(1.0, total / tree.num_leaves - tree.depth)
    fitting = (size_bytes / model.kv_bytes - tree.depth) / own
    most: NDArray[np.float64] = np.maximum(1.0, fitting)
    return most
