"""BatchLLM's MaximizeReuse (arXiv 2412.03594, Alg. 1): reduce a tree of prefixes to one level.

A greedy choice, kept as the paper's baseline for the exact one (`one_level`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(slots=True)
class _Part:
    """A node that may still become a prefix of its own."""

    node: int
    tokens: int  # from the end of its current parent
    leaves: int  # not taken by deeper prefixes


def maximize_reuse(tree: PrefixTree) -> NDArray[np.bool_]:
    """Return which nodes become prefixes by Alg. 1; bool [m].

    Children first: a grandchild is merged with (its own copy of) the child where
    (leaves(grandchild) - 1) · tokens(grandchild) > tokens(child), and becomes a sibling of the
    child with both their tokens. The root's children at the end are the prefixes. A grandchild that
    was not merged is dissolved: its leaves stay with the child.
    """
    parts: list[list[_Part]] = [[] for _ in range(tree.num_nodes)]
    edges, leaves, parents = (
        each.tolist() for each in (tree.edge_tokens, tree.num_leaves, tree.parent)
    )
    for node in range(tree.num_nodes - 1, 0, -1):
        tokens, left = edges[node], leaves[node]
        beside = parts[parents[node]]
        for part in parts[node]:
            if (part.leaves - 1) * part.tokens > tokens:
                part.tokens += tokens
                left -= part.leaves
                beside.append(part)
        parts[node].clear()
        if left:
            beside.append(_Part(node, tokens, left))
    chosen = np.zeros(tree.num_nodes, dtype=np.bool_)
    chosen[[part.node for part in parts[0]]] = True
    return chosen
