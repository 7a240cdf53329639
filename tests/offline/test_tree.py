"""The tree in arrays against a naive one, and what must hold of every tree."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.errors import InvalidValue
from muxcluster.offline.prefix.prompts import block_prompts, flat_prompts, token_prompts
from muxcluster.offline.prefix.tree import build_tree
from tests.offline.naive import (
    Prompt,
    few_prompts,
    longest_start,
    node_prefixes,
    prompts_of,
    shared_prefixes,
)


@given(few_prompts, st.integers(1, 3), st.integers(0, 1))
def test_nodes_are_those_of_a_naive_tree(
    sequences: list[Prompt], granularity: int, own_tokens: int
) -> None:
    tree = build_tree(prompts_of(sequences), granularity, own_tokens)
    tree.check()
    prefixes = node_prefixes(tree, sequences)
    found = dict(zip(prefixes, tree.num_leaves.tolist(), strict=True))
    wanted = shared_prefixes(sequences, granularity, own_tokens)
    assert found == {(): len(sequences), **wanted}
    for node, parent in enumerate(tree.parent.tolist()[1:], start=1):
        assert prefixes[parent] == longest_start(prefixes[node][:-1], prefixes)
    for place, node in enumerate(tree.leaf_node.tolist()):
        each = sequences[tree.order[place]]
        assert prefixes[node] == longest_start(each[: len(each) - own_tokens], prefixes)
    assert [sequences[i] for i in tree.order] == sorted(sequences)


@given(few_prompts, st.integers(2, 4))
def test_many_own_tokens_are_never_shared(sequences: list[Prompt], own_tokens: int) -> None:
    tree = build_tree(prompts_of(sequences), own_tokens=own_tokens)
    tree.check()
    for node, prefix in enumerate(node_prefixes(tree, sequences)[1:], start=1):
        places = range(tree.first[node], tree.first[node] + tree.num_leaves[node])
        below = [sequences[tree.order[place]] for place in places]
        assert {each[: len(prefix)] for each in below} == {prefix}
        assert min(map(len, below)) >= len(prefix) + own_tokens


@given(few_prompts, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(sequences: list[Prompt], random: Random) -> None:
    shuffled = random.sample(sequences, len(sequences))
    one, two = (build_tree(prompts_of(each)) for each in (sequences, shuffled))
    for name in ("lengths", "leaf_node", "parent", "depth", "first", "num_leaves"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert [sequences[i] for i in one.order] == [shuffled[i] for i in two.order]
    again = build_tree(prompts_of(sequences))
    assert np.array_equal(one.order, again.order)


@given(few_prompts, st.integers(1, 3))
def test_savings_of_every_node_once(sequences: list[Prompt], granularity: int) -> None:
    tree = build_tree(prompts_of(sequences), granularity)
    blocks = [
        each[: end * granularity]
        for each in sequences
        for end in range(1, len(each) // granularity + 1)
    ]
    assert tree.saved_tokens == granularity * (len(blocks) - len(set(blocks)))
    assert tree.prompt_tokens == sum(map(len, sequences))


def test_long_prompts_of_all_sizes_of_comparison() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2**31 - 1, 3000, dtype=np.int32)
    cuts = [1, 31, 32, 33, 95, 96, 97, 223, 224, 225, 991, 992, 993, 1503, 1504, 1505, 2999]
    parts = []
    for cut in cuts:  # equal to the base up to `cut`, then one greater
        part = base.copy()
        part[cut] = base[cut] + 1 if base[cut] < 2**31 - 1 else 0
        parts.append(part)
    tree = build_tree(token_prompts([base, *parts, base[:700], base]))
    tree.check()
    assert tree.depth.tolist() == sorted([0, *cuts, 700, 3000])
    assert tree.saved_tokens == sum(cuts) + 700 + 3000


def test_tokens_are_compared_as_numbers() -> None:
    values = [1, 255, 256, 65_535, 65_536, 2**31 - 1]
    prompts = token_prompts([np.array([v, 7], dtype=np.int32) for v in reversed(values)])
    assert build_tree(prompts).order.tolist() == [5, 4, 3, 2, 1, 0]


def test_chain_of_prompts_each_the_start_of_the_next() -> None:
    base = np.arange(1000, dtype=np.int32)
    tree = build_tree(token_prompts([base[: n + 1] for n in reversed(range(1000))]))
    tree.check()
    assert tree.num_nodes == 1000 and tree.depth.tolist() == list(range(1000))
    assert tree.parent.tolist() == [0, *range(999)]
    assert tree.num_leaves.tolist() == [1000, *range(1000, 1, -1)]


def test_own_tokens_are_never_shared() -> None:
    tree = build_tree(prompts_of([(1, 2, 3, 4), (1, 2, 3, 4), (1, 2)]), own_tokens=1)
    assert tree.depth.tolist() == [0, 1, 3] and tree.num_leaves.tolist() == [3, 3, 2]
    alone = build_tree(prompts_of([(1,), (1,)]), own_tokens=5)
    assert alone.num_nodes == 1 and alone.leaf_node.tolist() == [0, 0]


def test_blocks_stand_for_tokens_the_last_for_fewer() -> None:
    prompts = block_prompts([[7, 8, 9], [7, 8, 9], [7, 8], [7, 5]], [40, 40, 32, 20], 16)
    tree = build_tree(prompts)
    assert tree.depth.tolist() == [0, 16, 32, 40]
    assert tree.saved_tokens == 3 * 16 + 2 * 16 + 8 and tree.prompt_tokens == 132
    assert build_tree(prompts, 16).depth.tolist() == [0, 16, 32]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_prompts([]), "at least one prompt"),
        (lambda: prompts_of([(1,), (), (2,)]), "prompt 1 is empty"),
        (lambda: flat_prompts(np.zeros(2, np.int32), np.array([0, 2, 2])), "prompt 1 is empty"),
        (lambda: block_prompts([[1], [2, 3]], [16, 16], 16), "prompt 1: 16 tokens"),
        (lambda: block_prompts([[1], [2]], [16, 17], 16), "prompt 1: 17 tokens"),
    ],
)
def test_what_is_no_prompt_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        call()
