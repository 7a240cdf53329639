"""Longest prefix first: by hand, and against a cache asked for every request that waits."""

import numpy as np
import pytest

from bench.offline.baselines.longest_prefix import longest_prefix_order
from bench.offline.baselines.lru import LruPrefixCache, lru_saved_tokens
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.offline.prefix.tree import PrefixTree, build_tree


def _tree(*prompts: list[int]) -> PrefixTree:
    return build_tree(token_prompts([np.array(each, dtype=np.int32) for each in prompts]))


def test_relatives_of_what_is_cached_go_first_and_strangers_by_arrival() -> None:
    tree = _tree([1, 2, 3], [9, 8], [1, 2, 4], [7], [9, 5], [1, 6])
    assert longest_prefix_order(tree, 100).tolist() == [0, 2, 5, 1, 4, 3]


def test_what_was_evicted_draws_nobody() -> None:
    tree = _tree([1, 2, 3, 3], [5, 6, 7, 7], [1, 2, 3, 4], [5, 6, 7, 8])
    assert longest_prefix_order(tree, 8).tolist() == [0, 2, 1, 3]
    assert longest_prefix_order(tree, 2).tolist() == [0, 1, 2, 3]


def _by_asking_all(tree: PrefixTree, capacity: int) -> list[int]:
    cache = LruPrefixCache(tree, capacity)
    places = {int(number): place for place, number in enumerate(tree.order)}
    waiting, order = sorted(places), []
    while waiting:
        best = max(waiting, key=lambda number: (_cached(tree, cache, places[number]), -number))
        waiting.remove(best)
        order.append(best)
        cache.use(places[best])
    return order


def _cached(tree: PrefixTree, cache: LruPrefixCache, place: int) -> int:
    node = int(tree.leaf_node[place])
    while not cache.holds_path(node):
        node = int(tree.parent[node])
    return int(tree.depth[node])


@pytest.mark.parametrize("seed", range(20))
def test_the_next_is_the_one_of_which_most_is_cached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 3, rng.integers(1, 9)).tolist() for _ in range(30)]
    tree = _tree(*prompts)
    capacity = int(rng.integers(4, 60))
    order = longest_prefix_order(tree, capacity)
    assert order.tolist() == _by_asking_all(tree, capacity)
    assert sorted(order.tolist()) == list(range(30))
    assert lru_saved_tokens(tree, order.tolist(), 10**6) == tree.saved_tokens
