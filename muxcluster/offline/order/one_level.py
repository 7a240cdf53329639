"""The one level of prefixes that saves most, exactly (BatchLLM §4.1 has a greedy choice).

A chosen prefix v is computed once, in full, and serves the leaves below it that no deeper choice
serves. With d the depth of the nearest choice above v, choosing v adds

    leaves(v) · (depth(v) - d) - depth(v)

to what is saved, whatever is chosen elsewhere. Let F(v, d) be the most that choices at and below v
can add: the larger of the sum H(d) of F over the children, and of the line
leaves(v) · (depth(v) - d) - depth(v) + H(depth(v)). Both are convex, and no part of H falls
faster than the line, so the line is larger below some depth and nowhere else: one number per node
says whether it is chosen. F is stored as its bends at integer depths, so the result is exact, and
each node adds at most two bends: no table over nodes and depths is needed.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.prefix.tree import PrefixTree


@dataclass(slots=True)
class _Gain:
    """F of one node, or a sum of such functions, over d from 0 to the depth of the node above."""

    start: int = 0  # value at d = 0
    end: int = 0  # value at the depth of the node above
    # Fall per token before the first bend, and after the last.
    fall_start: int = 0
    fall_end: int = 0
    # (depth, by how much the fall per token is less from there), sorted.
    bends: list[tuple[int, int]] = field(default_factory=list)

    def add(self, other: "_Gain") -> None:
        """Become the sum of both, which have the same range; `other` must not be used again."""
        self.start += other.start
        self.end += other.end
        self.fall_start += other.fall_start
        self.fall_end += other.fall_end
        self.bends = sorted(self.bends + other.bends) if self.bends else other.bends

    def raise_to(self, depth: int, leaves: int) -> int:
        """Become the larger of itself and the line of a node that ends at `depth`.

        Returns the depth of the deepest choice above with which the node is still chosen; -1 if
        there is none.
        """
        line = (leaves - 1) * depth + self.end
        gap = line - self.start
        if gap <= 0:
            return -1
        at, fall, passed = 0, self.fall_start, 0
        for bend, less in self.bends:
            closed = gap - (leaves - fall) * (bend - at)
            if closed <= 0:
                break
            gap, at, fall, passed = closed, bend, fall - less, passed + 1
        steps = -(-gap // (leaves - fall))
        last = at + steps - 1
        gap -= (leaves - fall) * (steps - 1)
        self.bends[:passed] = [(last, leaves - fall - gap), (last + 1, gap)]
        self.start, self.fall_start = line, leaves
        return last

    def shorten(self, old_end: int, end: int) -> None:
        """Cut the range at `end` instead of `old_end`."""
        kept = bisect_right(self.bends, end, key=lambda bend: bend[0])
        at = old_end
        for bend, less in reversed(self.bends[kept:]):
            self.end += self.fall_end * (at - bend)
            self.fall_end += less
            at = bend
        del self.bends[kept:]
        self.end += self.fall_end * (at - end)


def best_prefixes(tree: PrefixTree) -> NDArray[np.bool_]:
    """Return which nodes to choose, bool [m]; of equal choices the one with fewest prefixes."""
    depths, leaves, parents = (each.tolist() for each in (tree.depth, tree.num_leaves, tree.parent))
    gains: list[_Gain | None] = [None] * tree.num_nodes
    deepest = [-1] * tree.num_nodes
    for node in range(tree.num_nodes - 1, 0, -1):
        gain, parent = gains[node] or _Gain(), parents[node]
        gains[node] = None
        deepest[node] = gain.raise_to(depths[node], leaves[node])
        gain.shorten(depths[node], depths[parent])
        above = gains[parent]
        if above is None:
            gains[parent] = gain
        else:
            above.add(gain)
    return _chosen(depths, parents, deepest)


def _chosen(depths: list[int], parents: list[int], deepest: list[int]) -> NDArray[np.bool_]:
    """Choose from the root down: a node is chosen where the nearest choice is not too deep."""
    chosen = np.zeros(len(depths), dtype=np.bool_)
    nearest = [0] * len(depths)
    for node in range(1, len(depths)):
        above = nearest[parents[node]]
        chosen[node] = above <= deepest[node]
        nearest[node] = depths[node] if chosen[node] else above
    return chosen
