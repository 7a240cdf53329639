"""Sorted layers, cheap splits, the two ends of the scan: each against its definition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.blend.pieces import cut, group_pieces, sort_layers, split_nodes
from muxcluster.offline.blend.plan import plan_blend
from muxcluster.offline.blend.scan import (
    DualScanner,
    End,
    Taken,
    blend_order,
    line_of,
    share_memory,
)
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import group_by_prefix
from muxcluster.placement.cost.resources import ResourceModel
from tests.offline.blend_cases import MODEL, Case, case_of, cases, cost
from tests.offline.naive import Prompt


def _sorted_leaves(case: Case, node: int) -> list[int]:
    """Alg. 1 as it is written down: sort the children, then each of them."""
    tree = case.tree
    children = [(-case.nodes.density[i], int(tree.first[i]), [i])
                for i in range(1, tree.num_nodes) if tree.parent[i] == node]  # fmt: skip
    children += [(-case.leaves.density[p], p, [])
                 for p in np.flatnonzero(tree.leaf_node == node).tolist()]  # fmt: skip
    return [
        place
        for _, first, below in sorted(children)
        for place in (_sorted_leaves(case, below[0]) if below else [first])
    ]


@given(cases())
def test_layers_are_sorted_by_falling_density(case: Case) -> None:
    starts, positions = sort_layers(case.tree, case.nodes, case.leaves)
    assert np.argsort(positions).tolist() == _sorted_leaves(case, 0)
    for node, (first, count) in enumerate(zip(case.tree.first, case.tree.num_leaves, strict=True)):
        found = sorted(positions[first : first + count].tolist())
        assert found == list(range(starts[node], starts[node] + count))


def _split(case: Case, node: int, budget: float) -> set[int]:
    """Alg. 2 as it is written down."""
    tree = case.tree
    below = [i for i in range(1, tree.num_nodes) if tree.parent[i] == node]
    count = len(below) + int((tree.leaf_node == node).sum())
    if tree.depth[node] * count > budget:
        return set()
    return {node}.union(*(_split(case, child, budget / count) for child in below))


@given(cases(), st.integers(0, 400))
def test_nodes_are_split_within_the_budget(case: Case, budget: int) -> None:
    assert set(np.flatnonzero(split_nodes(case.tree, budget)).tolist()) == _split(case, 0, budget)


@given(cases(), st.integers(0, 400))
def test_pieces_are_the_job_in_the_order_of_their_density(case: Case, budget: int) -> None:
    pieces = cut(case.tree, MODEL, case.leaves, budget)
    assert sorted(pieces.places.tolist()) == list(range(len(case.sequences)))
    assert pieces.size.sum() == len(case.sequences)
    density = pieces.work.density
    assert (np.diff(density) <= 1e-12 * density[1:]).all()
    parts = np.add.reduceat(pieces.request_work.compute_s, pieces.start)
    assert parts == pytest.approx(pieces.work.compute_s)
    assert pieces.request_work.memory_s == pytest.approx(case.leaves.memory_s[pieces.places])
    computed, whole = 0, set[tuple[int, ...]]()
    for i, (start, size) in enumerate(zip(pieces.start, pieces.size, strict=True)):
        members = case.at(pieces.places[start : start + size].tolist())
        found = (pieces.work.compute_s[i], pieces.work.memory_s[i])
        assert found == pytest.approx(cost(members))
        prefixes = {prompt[:n] for prompt, _ in members for n in range(1, len(prompt) + 1)}
        computed += len(prefixes)
        whole |= prefixes
    assert pieces.recomputed_tokens == computed - len(whole)
    assert budget or pieces.recomputed_tokens == 0


@given(cases())
def test_groups_as_pieces_divide_what_they_share(case: Case) -> None:
    groups = group_by_prefix(case.tree, best_prefixes(case.tree))
    pieces = group_pieces(case.tree, MODEL, case.leaves, groups)
    wanted = {
        frozenset(groups.requests[start : start + size].tolist())
        for start, size in zip(groups.start, groups.size, strict=True)
    }
    found = np.split(case.tree.order[pieces.places], pieces.start[1:])
    assert {frozenset(each.tolist()) for each in found} == wanted
    assert (np.diff(pieces.work.density) <= 0).all()
    total = cost(case.at(range(len(case.sequences))))
    assert (pieces.work.compute_s.sum(), pieces.work.memory_s.sum()) == pytest.approx(total)


def test_requests_that_all_share_a_prefix_are_scanned_from_both_ends() -> None:
    case = case_of([(5, 6, i) for i in range(40)], [1 if i % 2 else 50 for i in range(40)])
    pieces = cut(case.tree, MODEL, case.leaves)
    assert len(pieces) == 1
    order = blend_order(pieces, case.tree.lengths + case.by_place / 2, case.by_place, 150.0)
    assert set(case.by_place[order[:10]].tolist()) == {1.0, 50.0}


def test_a_split_takes_memory_bound_requests_out_of_a_compute_bound_sub_tree() -> None:
    sequences = [(1, i) for i in range(10)] + [(2, i) for i in range(10)]
    outputs = [1] * 9 + [900] + [2] * 10
    case = case_of(sequences, outputs)
    kept = cut(case.tree, MODEL, case.leaves)
    assert len(kept) == 2 and kept.recomputed_tokens == 0
    split = cut(case.tree, MODEL, case.leaves, budget_tokens=20)
    assert split.recomputed_tokens == 1
    assert case.at([int(split.places[-1])]) == [((1, 9), 900)]
    # short ones of one family became one piece again, as they lie side by side
    assert split.size.tolist() == [9, 10, 1]


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0, 1e12))
def test_shares_of_memory_mix_to_the_target(
    one: float, other: float, target: float, size: float
) -> None:
    compute, memory = max(one, other), min(one, other)
    left = share_memory(compute, memory, target, size)
    assert 0 <= left <= size
    if compute > memory and memory <= target <= compute:
        right = size - left
        assert left * compute + right * memory == pytest.approx(size * target, rel=1e-6, abs=1e-9)
    other_way = share_memory(memory, compute, target, size)
    assert compute == memory or other_way == pytest.approx(size - left, abs=1e-9 * size)


@given(cases(), st.integers(0, 50), st.floats(1, 500))
def test_every_request_is_handed_out_once(case: Case, budget: int, size: float) -> None:
    pieces = cut(case.tree, MODEL, case.leaves, budget)
    held = case.tree.lengths + case.by_place / 2
    order = blend_order(pieces, held, case.by_place, size)
    assert sorted(order.tolist()) == list(range(len(case.sequences)))
    again = blend_order(pieces, held, case.by_place, size)
    assert np.array_equal(order, again)


@given(cases(), st.floats(0, 1))
def test_a_plan_keeps_its_budget_of_recomputed_tokens(case: Case, share: float) -> None:
    plan = plan_blend(case.tree, MODEL, known_lengths(case.by_place), 300.0, share)
    assert sorted(plan.requests.tolist()) == list(range(len(case.sequences)))
    assert plan.pieces.recomputed_tokens <= share * case.tree.saved_tokens
    assert plan.sharing_kept >= 1 - share
    compute, memory = cost(case.at(range(len(case.sequences))))
    assert plan.density >= compute / memory * (1 - 1e-9)
    assert share or plan.density == pytest.approx(compute / memory)


def test_nothing_is_handed_out_without_memory() -> None:
    case = case_of([(1,), (2,)], [3, 40])
    pieces = cut(case.tree, MODEL, case.leaves)
    scanner = DualScanner(line_of(pieces))
    assert scanner.take(0.0, 0.0, 0.0) is None and len(scanner) == 2
    first, second = scanner.take(0.0, 0.0, 10.0), scanner.take(0.0, 0.0, 10.0)
    assert first is not None and second is not None and len(scanner) == 0
    assert {first.place, second.place} == {0, 1} and scanner.take(0.0, 0.0, 10.0) is None
    with pytest.raises(ValueError, match="more than 0 bytes"):
        blend_order(pieces, np.ones(2), np.ones(2), 0.0)


def test_the_compute_bound_end_may_always_hold_a_little() -> None:
    """Whatever the other one holds; up to half of all."""
    prompts = [tuple(range(1000 * i, 1000 * i + 100)) for i in range(8)] + [
        (9000 + i,) for i in range(90)
    ]
    case = case_of(prompts, [2] * 8 + [60] * 90)
    line = line_of(cut(case.tree, MODEL, case.leaves))
    assert DualScanner(line).take(50.0, 1000.0, 1000.0) is None
    taken = DualScanner(line).take(50.0, 1000.0, 1000.0, 51.0)
    assert taken is not None and taken.end is End.COMPUTE
    assert DualScanner(line).take(500.0, 1000.0, 1000.0, 900.0) is None


def test_both_resources_are_busy_all_the_time() -> None:
    sequences: list[Prompt] = []
    outputs = []
    for family in range(60):  # every other one is bound by compute, the others by memory
        own, output = (1, 60) if family % 2 else (100, 2)
        for member in range(10):
            sequences.append((family, *range(60), *range(1000 * member, 1000 * member + own)))
            outputs.append(output)
    model = ResourceModel(token_s=36.0, attention_s=0.0, kv_s=1.0, kv_bytes=1)
    case = case_of(sequences, outputs, model)
    pieces = cut(case.tree, model, case.leaves)
    assert len(pieces) == 60 and pieces.recomputed_tokens == 0
    size = 40 * 120.0
    scanner = DualScanner(line_of(pieces))
    blended = _run(case, lambda *held: scanner.take(*held, size))
    depth_first = iter(pieces.places.tolist())

    def in_turn(held: float, _: float) -> Taken | None:
        if held >= size:
            return None
        place = next(depth_first, None)
        return None if place is None else Taken(place, End.COMPUTE)

    bound = max(float(case.leaves.compute_s.sum()), float(case.leaves.memory_s.sum()))
    assert blended < 1.15 * bound
    assert _run(case, in_turn) > 1.4 * blended  # one kind after the other


def test_each_end_works_through_whole_families() -> None:
    sequences = [(family, 7, member) for family in range(20) for member in range(5)]
    case = case_of(sequences, [2 if prompt[0] % 2 else 60 for prompt in sequences])
    pieces = cut(case.tree, MODEL, case.leaves)
    order = blend_order(pieces, case.tree.lengths + case.by_place / 2, case.by_place, 300.0)
    long = case.by_place[order] > 30
    for end in (True, False):
        families = [case.at([place])[0][0][0] for place in order[long == end].tolist()]
        assert np.count_nonzero(np.diff(families)) == len(set(families)) - 1 == 9
    # neither kind is kept for the end
    assert 0.2 < np.flatnonzero(long).mean() / len(order) < 0.8
    assert long[:30].any() and not long[:30].all()


def _run(case: Case, take: Callable[[float, float], Taken | None]) -> float:
    """Seconds if a step takes the longer of its compute and its reads, a token a request.

    A request's prefill is spread over its steps, as chunks are.
    """
    held, seconds = dict.fromkeys(End, 0.0), 0.0
    running: list[tuple[int, Taken]] = []
    while True:
        while (taken := take(*held.values())) is not None:
            held[taken.end] += _held(case, taken.place)
            running.append((int(case.by_place[taken.place]), taken))
        if not running:
            return seconds
        places = [each.place for _, each in running]
        steps = case.by_place[places]
        compute = (case.leaves.compute_s[places] / steps).sum()
        seconds += max(compute, (case.leaves.memory_s[places] / steps).sum())
        for left, each in running:
            if left == 1:
                held[each.end] -= _held(case, each.place)
        running = [(left - 1, each) for left, each in running if left > 1]


def _held(case: Case, place: int) -> float:
    return float(case.tree.lengths[place] + case.by_place[place] / 2)
