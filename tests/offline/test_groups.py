"""Groups and their order, how long prefixes live, and the cache that knows none of it."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.offline.baselines.lifetimes import prefix_lifetimes
from bench.offline.baselines.lru import LruPrefixCache, lru_saved_tokens
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import group_by_prefix, order_by_decoding
from muxcluster.offline.prefix.tree import build_tree
from tests.offline import naive
from tests.offline.naive import Prompt, few_prompts, longest_start, node_prefixes, prompts_of


@given(few_prompts, st.data())
def test_each_request_is_with_its_deepest_chosen_prefix(
    sequences: list[Prompt], data: st.DataObject
) -> None:
    tree = build_tree(prompts_of(sequences))
    picks = st.lists(st.booleans(), min_size=tree.num_nodes - 1, max_size=tree.num_nodes - 1)
    chosen = np.array([False, *data.draw(picks)])
    prefixes = node_prefixes(tree, sequences)
    wanted = [prefixes[node] for node in np.flatnonzero(chosen)]
    groups = group_by_prefix(tree, chosen)
    assert sorted(groups.requests.tolist()) == list(range(len(sequences)))
    assert groups.saved_tokens == naive.saved_by(
        sequences, [p for p in wanted if any(longest_start(s, wanted) == p for s in sequences)]
    )
    firsts = []
    for start, size, node in zip(groups.start, groups.size, groups.prefix_node, strict=True):
        members = groups.requests[start : start + size].tolist()
        found = {longest_start(sequences[i], wanted) for i in members}
        assert found == {prefixes[node]} and (node > 0 or size == 1)
        places = [int(np.flatnonzero(tree.order == i)[0]) for i in members]
        assert places == sorted(places)
        firsts.append(places[0])
    assert firsts == sorted(firsts)
    used = [node for node in groups.prefix_node.tolist() if node]
    assert len(used) == len(set(used))
    assert groups.prefix_tokens.tolist() == [len(prefixes[i]) for i in groups.prefix_node]


@given(few_prompts, st.randoms(use_true_random=False))
def test_groups_run_by_what_they_decode_per_token_of_prefill(
    sequences: list[Prompt], random: Random
) -> None:
    outputs = [random.randint(1, 9) for _ in sequences]
    prompts = prompts_of(sequences)
    tree = build_tree(prompts)
    groups = group_by_prefix(tree, best_prefixes(tree))
    ordered = order_by_decoding(groups, prompts.lengths, np.array(outputs, dtype=np.float64))
    ratios = []
    for start, size, prefix in zip(ordered.start, ordered.size, ordered.prefix_tokens, strict=True):
        members = ordered.requests[start : start + size].tolist()
        distinct = sum(len(sequences[i]) - prefix for i in members)
        ratios.append(sum(outputs[i] for i in members) / (prefix + distinct))
    assert ratios == sorted(ratios, reverse=True)
    assert ordered.saved_tokens == groups.saved_tokens
    assert sorted(ordered.requests.tolist()) == list(range(len(sequences)))
    assert {(s, n) for s, n in zip(ordered.prefix_node, ordered.size, strict=True)} == {
        (s, n) for s, n in zip(groups.prefix_node, groups.size, strict=True)
    }


@given(few_prompts, st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_arrival(sequences: list[Prompt], random: Random) -> None:
    shuffled = random.sample(sequences, len(sequences))
    plans = []
    for each in (sequences, shuffled):
        tree = build_tree(prompts_of(each))
        groups = group_by_prefix(tree, best_prefixes(tree))
        plans.append([(groups.size.tolist()), [each[i] for i in groups.requests]])
    assert plans[0] == plans[1]


@given(few_prompts, st.randoms(use_true_random=False))
def test_lifetimes_hold_each_prefix_from_first_to_last_use(
    sequences: list[Prompt], random: Random
) -> None:
    tree = build_tree(prompts_of(sequences))
    numbers = random.sample(range(len(sequences)), len(sequences))
    lives = prefix_lifetimes(tree, np.array(numbers))
    prefixes = node_prefixes(tree, sequences)
    uses = [[at for at, i in enumerate(numbers) if sequences[i][: len(p)] == p] for p in prefixes]
    assert lives.first_use.tolist() == [min(each) for each in uses]
    assert lives.last_use.tolist() == [max(each) for each in uses]
    held = [
        len(
            {p[:n] for p, u in zip(prefixes, uses, strict=True) if min(u) <= at <= max(u)
             for n in range(1, len(p) + 1)}
            | {sequences[i][:n] for n in range(1, len(sequences[i]) + 1)}
        )
        for at, i in enumerate(numbers)
    ]  # fmt: skip
    assert lives.peak_tokens == max(held)


@given(few_prompts, st.integers(0, 30), st.randoms(use_true_random=False))
def test_lru_finds_what_a_cache_of_single_tokens_finds(
    sequences: list[Prompt], capacity: int, random: Random
) -> None:
    numbers = [random.randrange(len(sequences)) for _ in range(20)]
    tree = build_tree(prompts_of(sequences))
    cache = LruPrefixCache(tree, capacity)
    places = {number: place for place, number in enumerate(tree.order.tolist())}
    found = [cache.use(places[number]) for number in numbers]
    assert found == list(naive.lru_hits([sequences[number] for number in numbers], capacity))
    assert cache.held_tokens <= capacity


@given(few_prompts)
def test_lru_in_tree_order_with_the_plans_memory_saves_all(sequences: list[Prompt]) -> None:
    tree = build_tree(prompts_of(sequences))
    peak = prefix_lifetimes(tree, tree.order).peak_tokens
    assert lru_saved_tokens(tree, tree.order.tolist(), peak) == tree.saved_tokens
    assert lru_saved_tokens(tree, range(len(sequences)), 10**9) == tree.saved_tokens


def test_lru_loses_what_arrives_in_turn() -> None:
    sequences = [(group, group, group, i) for i in range(5) for group in range(4)]
    tree = build_tree(prompts_of(sequences))
    peak = prefix_lifetimes(tree, tree.order).peak_tokens
    assert peak == 4 and tree.saved_tokens == 4 * 4 * 3
    assert lru_saved_tokens(tree, range(len(sequences)), peak) == 0
    assert lru_saved_tokens(tree, range(len(sequences)), 3 * peak) == 0
    assert lru_saved_tokens(tree, range(len(sequences)), 4 * peak) == tree.saved_tokens


def test_equal_ratios_keep_the_order_of_the_tree() -> None:
    sequences = [(3, 1), (2, 1), (1, 1)]
    prompts = prompts_of(sequences)
    tree = build_tree(prompts)
    groups = group_by_prefix(tree, best_prefixes(tree))
    same = order_by_decoding(groups, prompts.lengths, np.ones(3))
    assert same.requests.tolist() == groups.requests.tolist() == [2, 1, 0]
    assert order_by_decoding(groups, prompts.lengths, np.array([2.0, 1, 1])).requests[0] == 0
    assert groups.prefix_tokens.sum() == 0 and groups.saved_tokens == pytest.approx(0)
