"""An LRU prefix cache of a given size, as in servers: the baseline of a planned batch."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from muxcluster.offline.prefix.tree import PrefixTree


class LruPrefixCache:
    """A radix cache of whole prompts that evicts the least recently used tokens, deepest first.

    All tokens of a tree edge are used by the same requests, so one entry per edge suffices: how
    many of its tokens, from its start, are cached. Output tokens take no room, in favour of the
    cache.
    """

    def __init__(self, tree: PrefixTree, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.held_tokens = 0
        self._held: OrderedDict[int, int] = OrderedDict()
        self._parents, self._edges = tree.parent.tolist(), tree.edge_tokens.tolist()
        self._leaf_nodes = tree.leaf_node.tolist()
        self._tails = (tree.lengths - tree.depth[tree.leaf_node]).tolist()
        self._num_nodes = tree.num_nodes

    def use(self, place: int) -> int:
        """Run the request at `place` in the tree; return how many of its tokens were cached."""
        path = self._path(place)
        found, whole = 0, True
        for edge, tokens in path:
            held = self._held.get(edge, 0)
            found += held if whole else 0
            whole = whole and held == tokens
            self.held_tokens += tokens - held
        for edge, tokens in reversed(path):
            self._held[edge] = tokens
            self._held.move_to_end(edge)
        self._evict()
        return found

    def holds_path(self, node: int) -> bool:
        """Return True where all tokens from the root to the end of a node's edge are cached."""
        while node:
            if self._held.get(node, 0) < self._edges[node]:
                return False
            node = self._parents[node]
        return True

    def _path(self, place: int) -> Sequence[tuple[int, int]]:
        """Return edges and their tokens from the root to the leaf, the leaf's own last."""
        path = [(self._num_nodes + place, self._tails[place])]
        node = self._leaf_nodes[place]
        while node:
            path.append((node, self._edges[node]))
            node = self._parents[node]
        path.reverse()
        return path

    def _evict(self) -> None:
        while self.held_tokens > self.capacity_tokens:
            edge, tokens = self._held.popitem(last=False)
            kept = max(0, tokens - (self.held_tokens - self.capacity_tokens))
            self.held_tokens -= tokens - kept
            if kept:
                self._held[edge] = kept
                self._held.move_to_end(edge, last=False)


def lru_saved_tokens(tree: PrefixTree, requests: Iterable[int], capacity_tokens: int) -> int:
    """Return the prompt tokens that an LRU cache saves when `requests` (numbers) run in turn."""
    cache = LruPrefixCache(tree, capacity_tokens)
    places = np.empty_like(tree.order)
    places[tree.order] = np.arange(len(tree.order))
    by_number = places.tolist()
    return sum(cache.use(by_number[number]) for number in requests)
