"""Pieces of a job by density: prefix groups, or sub-trees that are split where that is cheap.

A sub-tree that is bound by compute as a whole may contain requests that are bound by memory; these
can run beside similar ones only if they leave it, and then their prefix is computed again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.densities import Work, even_parts, node_work
from muxcluster.offline.prefix.groups import PrefixGroups
from muxcluster.offline.prefix.ranges import joined_ranges
from muxcluster.offline.prefix.tree import PrefixTree
from muxcluster.placement.cost.resources import ResourceModel


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


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts of a job that are scheduled whole, the most compute-bound first."""

    places: NDArray[np.int64]  # int64 [n], places of the tree, piece by piece
    start: NDArray[np.int64]  # int64 [k]; piece i holds places[start[i]:start[i] + size[i]]
    size: NDArray[np.int64]
    work: Work  # of each piece
    request_work: Work  # of each of `places`, with an even part of what it shares
    recomputed_tokens: int  # prompt tokens computed more often than the tree needs

    def __len__(self) -> int:
        return len(self.size)


def split_nodes(tree: PrefixTree, budget_tokens: float) -> NDArray[np.bool_]:
    """Return the nodes whose children become pieces (BlendServe's Alg. 2), bool [m].

    A node stays whole where (tokens up to its end) · children > budget; otherwise it is split and
    each child has an equal part of the budget. The root has no tokens and is always split.
    """
    children = np.bincount(tree.parent[1:], minlength=tree.num_nodes)
    children += np.bincount(tree.leaf_node, minlength=tree.num_nodes)
    split = np.zeros(tree.num_nodes, dtype=np.bool_)
    budget = [budget_tokens] * tree.num_nodes
    rows = zip(tree.parent.tolist(), tree.depth.tolist(), children.tolist(), strict=True)
    for node, (parent, depth, count) in enumerate(rows):
        have = budget[parent] if node else budget_tokens
        if (node == 0 or split[parent]) and depth * count <= have:
            split[node] = True
            budget[node] = have / count
    return split


def cut(tree: PrefixTree, model: ResourceModel, leaves: Work, budget_tokens: float = 0.0) -> Pieces:
    """Return sub-trees as pieces: layers sorted, nodes split within the budget, neighbours merged.

    budget_tokens: roughly what Alg. 2 may compute again; 0 keeps all sharing. Neighbouring pieces
    of the same node become one again and share its tokens.
    """
    nodes = node_work(tree, model, leaves)
    starts, positions = sort_layers(tree, nodes, leaves)
    sorted_places = np.empty_like(positions)
    sorted_places[positions] = np.arange(len(positions))
    split = split_nodes(tree, budget_tokens)
    whole = np.flatnonzero(split[tree.parent] & ~split)
    alone = np.flatnonzero(split[tree.leaf_node])
    above = np.concatenate((tree.parent[whole], tree.leaf_node[alone]))
    prefix_s = model.prefill_s(np.zeros(len(above)), tree.depth[above].astype(np.float64))
    compute = np.concatenate((nodes.compute_s[whole], leaves.compute_s[alone])) + prefix_s
    memory = np.concatenate((nodes.memory_s[whole], leaves.memory_s[alone]))
    first = np.concatenate((starts[whole], positions[alone]))
    size = np.concatenate((tree.num_leaves[whole], np.ones_like(alone)))

    order = np.lexsort((first, -compute / memory))
    heads = _heads(above[order], tree.depth[above[order]])
    places = sorted_places[joined_ranges(first[order], size[order])]
    sizes = np.add.reduceat(size[order], heads)
    own = even_parts(tree, model, leaves, ~split)
    shared_s = np.repeat(prefix_s[order[heads]] / sizes, sizes)
    recomputed = tree.depth[above[order[heads]]].sum() - tree.edge_tokens[split].sum()
    work = Work(own.compute_s[places] + shared_s, own.memory_s[places])
    return _sorted(places, sizes, work, int(recomputed))


def group_pieces(
    tree: PrefixTree, model: ResourceModel, leaves: Work, groups: PrefixGroups
) -> Pieces:
    """Return prefix groups as pieces. Prefixes that groups share are computed once and kept."""
    place = np.empty_like(tree.order)
    place[tree.order] = np.arange(len(tree.order))
    places = place[groups.requests]
    own = even_parts(tree, model, leaves, np.ones(tree.num_nodes, dtype=np.bool_))
    work = Work(own.compute_s[places], own.memory_s[places])
    return _sorted(places, groups.size, work, 0)


def _heads(above: NDArray[np.int64], depth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which pieces do not share the prefix of the piece before them, int64."""
    return np.flatnonzero((np.diff(above, prepend=-1) != 0) | (depth == 0))


def _sorted(
    places: NDArray[np.int64], sizes: NDArray[np.int64], work: Work, recomputed: int
) -> Pieces:
    """Return pieces by falling density. work: of the `places`."""
    starts = np.cumsum(sizes) - sizes
    pieces = Work(np.add.reduceat(work.compute_s, starts), np.add.reduceat(work.memory_s, starts))
    order = np.argsort(-pieces.density, kind="stable")
    size = sizes[order]
    requests = joined_ranges(starts[order], size)
    return Pieces(
        places[requests],
        np.cumsum(size) - size,
        size,
        Work(pieces.compute_s[order], pieces.memory_s[order]),
        Work(work.compute_s[requests], work.memory_s[requests]),
        recomputed,
    )
