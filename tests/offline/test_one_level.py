"""One level of prefixes: the exact choice against all choices, Alg. 1 against its own listing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.offline.baselines.maximize_reuse import maximize_reuse
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import group_by_prefix
from muxcluster.offline.prefix.tree import build_tree
from tests.offline import naive
from tests.offline.naive import Prompt, few_prompts, node_prefixes, prompts_of


def unequal_edges() -> st.SearchStrategy[list[Prompt]]:
    """Prompts over a few letters, each letter repeated by a length of its own: long edges."""
    lengths = st.lists(st.integers(1, 9), min_size=4, max_size=4)
    words = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=2, max_size=12)

    def spelt(lengths: list[int], words: list[list[int]]) -> list[Prompt]:
        return [(9, *(letter for letter in word for _ in range(lengths[letter]))) for word in words]

    return st.builds(spelt, lengths, words)


prompt_sets = few_prompts | unequal_edges()


@settings(max_examples=200)
@given(prompt_sets)
def test_no_choice_of_prefixes_saves_more(sequences: list[Prompt]) -> None:
    tree = build_tree(prompts_of(sequences))
    prefixes = node_prefixes(tree, sequences)[1:]
    groups = group_by_prefix(tree, best_prefixes(tree))
    if len(prefixes) <= 10:
        assert groups.saved_tokens == naive.best_one_level(sequences, prefixes)
    assert groups.saved_tokens <= tree.saved_tokens


@settings(max_examples=200)
@given(prompt_sets)
def test_alg_1_as_written_and_never_better(sequences: list[Prompt]) -> None:
    tree = build_tree(prompts_of(sequences))
    chosen = maximize_reuse(tree)
    root = naive.trie(sequences)
    naive.maximize_reuse(root)
    wanted = [child for child in root.children if not child.is_leaf]
    prefixes = node_prefixes(tree, sequences)
    assert {prefixes[node] for node in np.flatnonzero(chosen)} == {child.prefix for child in wanted}
    greedy = group_by_prefix(tree, chosen).saved_tokens
    assert greedy == sum(child.tokens * (child.leaves() - 1) for child in wanted)
    assert greedy <= group_by_prefix(tree, best_prefixes(tree)).saved_tokens


def test_exact_beats_alg_1_where_a_merge_uses_a_prefix_up() -> None:
    # two grandchildren of 4 requests each below a child of 9 tokens with no request of its own:
    # if both are merged no third copy of the child is left, which Alg. 1 does not see
    tails = [(1, *range(100, 102)), (2, *range(200, 202))]
    sequences = [(*range(9), *tail, 1000 + i) for tail in tails for i in range(4)]
    tree = build_tree(prompts_of(sequences))
    greedy, exact = (
        group_by_prefix(tree, choose(tree)).saved_tokens
        for choose in (maximize_reuse, best_prefixes)
    )
    assert (greedy, exact, tree.saved_tokens) == (63, 72, 9 * 7 + 3 * 3 * 2)


def test_deep_chain_of_prefixes() -> None:
    # 400 prompts, each the start of the next: the best cuts by a programme over all cuts
    base = tuple(range(400))
    tree = build_tree(prompts_of([base[: n + 1] for n in range(400)]))
    nearest = np.arange(401)
    table = np.zeros((401, 401))  # [depth, depth of the nearest choice above]: the most added
    for depth in range(399, 0, -1):
        add = (401 - depth) * (depth - nearest) - depth
        table[depth] = np.maximum(table[depth + 1], add + table[depth + 1, depth])
    assert group_by_prefix(tree, best_prefixes(tree)).saved_tokens == table[1, 0]
