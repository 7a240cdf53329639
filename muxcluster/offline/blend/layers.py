"""BlendServe's Alg. 1: below every node, the sub-trees most bound by compute come first."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import Work
from muxcluster.offline.prefix.tree import PrefixTree


def sort_layers(
    tree: PrefixTree, nodes: Work, leaves: Work
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort siblings by falling density, stably; return where nodes and leaves then lie.

    Sub-trees stay together, so nothing shared is lost. Returns the first position of each node's
    leaves, int64 [m], and the position of each leaf, int64 [n].
    """
    parents = np.concatenate((tree.parent[1:], tree.leaf_node))
    density = np.concatenate((nodes.density[1:], leaves.density))
    sizes = np.concatenate((tree.num_leaves[1:], np.ones_like(tree.leaf_node)))
    places = np.concatenate((tree.first[1:], np.arange(len(tree.leaf_node))))
    order = np.lexsort((places, -density, parents))
    before = np.cumsum(sizes[order]) - sizes[order]
    family = parents[order]
    eldest = np.flatnonzero(np.diff(family, prepend=-1))
    before -= np.repeat(before[eldest], np.diff(eldest, append=len(family)))
    offset = np.empty_like(before)
    offset[order] = before
    below = tree.num_nodes - 1
    start = [0]
    for parent, ahead in zip(tree.parent[1:].tolist(), offset[:below].tolist(), strict=True):
        start.append(start[parent] + ahead)
    starts = np.array(start, dtype=np.int64)
    return starts, starts[tree.leaf_node] + offset[below:]
