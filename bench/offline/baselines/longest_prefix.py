"""Longest prefix first, as SGLang orders its queue: the next request is the one most cached."""

import heapq

import numpy as np
from numpy.typing import NDArray

from bench.offline.baselines.lru import LruPrefixCache
from muxcluster.offline.prefix.tree import PrefixTree

_STARTED = np.iinfo(np.int64).max


def longest_prefix_order(tree: PrefixTree, capacity_tokens: int) -> NDArray[np.int64]:
    """Return prompt numbers in the order they start, int64 [n].

    The whole job waits. The next request is the one of which the cache holds the longest prefix; of
    equal ones the first to arrive, so requests that share little stay in the order of arrival. Only
    whole edges of the tree count as held.

    capacity_tokens: of an LRU cache that holds nothing but prompts.
    """
    cache = LruPrefixCache(tree, capacity_tokens)
    queue = _Queue(tree)
    order = np.empty_like(tree.order)
    for number in range(len(order)):
        place = queue.take(cache)
        order[number] = tree.order[place]
        cache.use(place)
    return order


class _Queue:
    """Requests that wait, below nodes that are or were in the cache."""

    def __init__(self, tree: PrefixTree) -> None:
        self._waiting = tree.order.copy()  # by place: when it arrived; _STARTED once it has started
        self._first, self._sizes = tree.first.tolist(), tree.num_leaves.tolist()
        self._depths, self._parents = tree.depth.tolist(), tree.parent.tolist()
        self._leaf_nodes = tree.leaf_node.tolist()
        self._listed: set[int] = set()
        self._nodes: list[tuple[int, int, int]] = []  # heap: -depth, first arrival, node
        self._list(0)

    def take(self, cache: LruPrefixCache) -> int:
        """Return the place of the next request. At least one must wait."""
        while True:
            depth, arrival, node = self._nodes[0]
            place = self._earliest(node)
            now = int(self._waiting[place])
            if now == _STARTED or not cache.holds_path(node):
                heapq.heappop(self._nodes)
                self._listed.discard(node)
            elif now != arrival:
                heapq.heapreplace(self._nodes, (depth, now, node))
            else:
                break
        self._waiting[place] = _STARTED
        node = self._leaf_nodes[place]
        while node:
            self._list(node)
            node = self._parents[node]
        return place

    def _list(self, node: int) -> None:
        if node not in self._listed:
            self._listed.add(node)
            arrival = int(self._waiting[self._earliest(node)])
            heapq.heappush(self._nodes, (-self._depths[node], arrival, node))

    def _earliest(self, node: int) -> int:
        start = self._first[node]
        return start + int(self._waiting[start : start + self._sizes[node]].argmin())
