"""What requests and sub-trees cost, and output lengths that are guessed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.densities import leaf_work, node_work
from muxcluster.offline.blend.lengths import estimate_lengths, known_lengths, sample_places
from muxcluster.offline.blend.scan import share_memory
from muxcluster.offline.prefix.tree import build_tree
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named
from tests.offline.blend_cases import MODEL, Case, case_of, cases, cost
from tests.offline.naive import node_prefixes, prompts_of


def _llama_density(prompt: int, output: int) -> float:
    model = resource_model(shape_named("llama-3.1-8b"), gpu_named("A100-80GB"))
    return float(model.density(np.array([float(prompt)]), np.array([float(output)]))[0])


def test_densities_of_the_paper() -> None:
    compute, memory = _llama_density(512, 256), _llama_density(256, 16384)
    assert compute == pytest.approx(3.73, rel=0.02)
    assert memory == pytest.approx(0.096, rel=0.02)
    left = share_memory(compute, memory, 1.27, 60e9)
    assert left == pytest.approx(19.3e9, rel=0.02)
    assert 60e9 - left == pytest.approx(40.7e9, rel=0.02)


def test_gpus_add_up_and_experts_that_rest_cost_nothing() -> None:
    dense, gpu = shape_named("llama-3.1-8b"), gpu_named("A100-80GB")
    one, two = resource_model(dense, gpu), resource_model(dense, gpu, tp=2)
    assert (two.token_s, two.kv_s) == pytest.approx((one.token_s / 2, one.kv_s / 2))
    assert one.kv_bytes == two.kv_bytes == 2 * 32 * 8 * 128 * 2
    assert one.token_s == pytest.approx(2 * dense.num_params / gpu.flops)
    moe = shape_named("mixtral-8x7b")
    assert resource_model(moe, gpu).token_s == pytest.approx(2 * 12.9e9 / gpu.flops, rel=0.01)


@given(cases())
def test_sub_trees_cost_what_their_tokens_cost(case: Case) -> None:
    tree = case.tree
    prefixes = node_prefixes(tree, case.sequences)
    for node in range(tree.num_nodes):
        first, above = tree.first[node], len(prefixes[tree.parent[node]])
        below = case.at(range(first, first + tree.num_leaves[node]))
        found = (case.nodes.compute_s[node], case.nodes.memory_s[node])
        assert found == pytest.approx(cost(below, above))
    for place, node in enumerate(tree.leaf_node.tolist()):
        found = (case.leaves.compute_s[place], case.leaves.memory_s[place])
        assert found == pytest.approx(cost(case.at([place]), len(prefixes[node])))


def test_reads_that_are_shared_take_no_memory_time() -> None:
    case = case_of([(1, 2, 3), (1, 2, 4)], [10, 20])
    shared = leaf_work(case.tree, MODEL, known_lengths(case.by_place), np.array([0.25, 0.0]))
    assert shared.memory_s == pytest.approx(case.leaves.memory_s * [0.75, 1.0])
    assert np.array_equal(shared.compute_s, case.leaves.compute_s)
    root = node_work(case.tree, MODEL, shared)
    assert root.memory_s[0] == pytest.approx(shared.memory_s.sum())


def _estimate(case: Case, known: dict[int, float], node: int, ask_leaves: bool) -> float:
    """What an unknown leaf, or an unsampled node, below `node` takes, by definition."""
    tree = case.tree
    leaves = [known[p] for p in np.flatnonzero(tree.leaf_node == node).tolist() if p in known]
    nodes = []
    for child in range(1, tree.num_nodes):
        places = range(tree.first[child], tree.first[child] + tree.num_leaves[child])
        values = [known[place] for place in places if place in known]
        if tree.parent[child] == node and values:
            nodes.append(np.mean(values))
    for siblings in (leaves, nodes) if ask_leaves else (nodes, leaves):
        if siblings:
            return float(np.mean(siblings))
    return _estimate(case, known, int(tree.parent[node]), ask_leaves=False)


@given(cases(), st.data())
def test_unknown_lengths_come_from_siblings_else_from_further_up(
    case: Case, data: st.DataObject
) -> None:
    count = len(case.sequences)
    picks = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    known = {place: float(case.by_place[place]) for place in picks}
    given_ = np.array([known.get(place, np.nan) for place in range(count)])
    found = estimate_lengths(case.tree, given_)
    squares = {place: value**2 for place, value in known.items()}
    for values, wanted in ((found.mean, known), (found.square, squares)):
        for place in range(count):
            node = int(case.tree.leaf_node[place])
            expected = wanted.get(place) or _estimate(case, wanted, node, ask_leaves=True)
            assert values[place] == pytest.approx(expected)


def test_requests_that_share_nothing_are_not_taken_for_the_largest_family() -> None:
    family = [(1, 2, i) for i in range(50)]
    alone = [(10 + i,) for i in range(10)]
    tree = build_tree(prompts_of(family + alone))
    known = np.full(60, np.nan)
    known[:40], known[50], known[51] = 2.0, 900.0, 1100.0
    found = estimate_lengths(tree, known)
    assert set(found.mean[40:50].tolist()) == {2.0}
    assert set(found.mean[52:].tolist()) == {1000.0}
    assert set(found.square[52:].tolist()) == {(900.0**2 + 1100.0**2) / 2}


def test_few_results_are_drawn_towards_the_level_above() -> None:
    groups = [[(1, 1, i) for i in range(10)], [(2, 2, i) for i in range(10)]]
    tree = build_tree(prompts_of([each for group in groups for each in group]))
    known = np.full(20, np.nan)
    known[0], known[10:19] = 100.0, 10.0
    plain = estimate_lengths(tree, known).mean
    assert plain[1] == 100.0 and plain[19] == 10.0
    drawn = estimate_lengths(tree, known, prior_weight=1.0).mean
    both = (100.0 + 10.0 + known[~np.isnan(known)].mean()) / 3
    assert drawn[1] == pytest.approx((100.0 + both) / 2)
    assert drawn[19] == pytest.approx((90.0 + both) / 10)
    known[1:10] = 100.0
    assert np.array_equal(estimate_lengths(tree, known, prior_weight=1.0).mean[:19], known[:19])


def test_work_expected_of_unknown_lengths_is_that_of_the_lengths_they_may_have() -> None:
    case = case_of([(1, 2, i) for i in range(4)], [10, 1000, 10, 1000])
    known = np.array([10.0, 1000.0, np.nan, np.nan])
    expected = leaf_work(case.tree, MODEL, estimate_lengths(case.tree, known))
    assert expected.memory_s.sum() == pytest.approx(case.leaves.memory_s.sum())
    assert expected.compute_s.sum() == pytest.approx(case.leaves.compute_s.sum())


@given(st.integers(1, 400), st.floats(0.001, 1.0), st.integers(0, 99))
def test_the_sample_is_spread_over_the_tree(count: int, share: float, seed: int) -> None:
    tree = build_tree(prompts_of([(i,) for i in range(count)]))
    places = sample_places(tree, np.random.default_rng(seed), share)
    assert len(set(places.tolist())) == len(places) == max(1, round(share * count))
    assert places.min() >= 0 and places.max() < count
    gaps = np.diff(places)
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


def test_requests_that_share_nothing_are_sampled_although_few() -> None:
    families = [(1, i) for i in range(990)] + [(i,) for i in range(2, 12)]
    tree = build_tree(prompts_of(families))
    places = sample_places(tree, np.random.default_rng(0))
    assert np.count_nonzero(tree.leaf_node[places] == 0) == 8
    assert len(places) <= 10 + 8


def test_requests_that_go_on_make_their_kind_a_long_one() -> None:
    """Tokens seen over results: (10 + 90 + 80) / 1 for the first family, 20 for the other."""
    tree = build_tree(prompts_of([(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]))
    known = np.array([10, np.nan, np.nan, np.nan, 20, np.nan])
    so_far = np.array([0, 90.0, 80.0, 0, 0, 0])
    found = estimate_lengths(tree, known, so_far=so_far)
    assert found.mean.tolist() == [10, 180, 180, 180, 20, 20]
    assert (found.square >= found.mean**2).all()
    without_results = np.array([np.nan, np.nan, np.nan, np.nan, 20, np.nan])
    assert estimate_lengths(tree, without_results, so_far=so_far).mean[0] == 170
