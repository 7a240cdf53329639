"""Feeding a job while it runs: each request once, in order, within memory, shallow, and live."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.blend.lengths import known_lengths, sample_places
from muxcluster.offline.feed.feeder import BatchFeeder, Fed, Room
from muxcluster.offline.order.orders import ORDERS, OfflineJob, order_requests
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.offline.prefix.tree import PrefixTree, build_tree
from tests.offline.blend_cases import MODEL, Case, cases

FIXED = ("dfs", "fcfs", "random")
AMPLE = Room(0.0, 1e15, 0.0, 1 << 40)


def _job(case: Case) -> OfflineJob:
    return OfflineJob(case.tree, known_lengths(case.by_place), MODEL, 1e9)


def _prompt_bytes(tree: PrefixTree, numbers: set[int]) -> float:
    """What requests hold together when they begin: prefixes once."""
    places = [place for place, number in enumerate(tree.order.tolist()) if number in numbers]
    nodes: set[int] = set()
    for place in places:
        node = int(tree.leaf_node[place])
        while node:
            nodes.add(node)
            node = int(tree.parent[node])
    own = sum(tree.lengths[place] - tree.depth[tree.leaf_node[place]] for place in places)
    return float(MODEL.kv_bytes * (own + sum(tree.edge_tokens[node] for node in nodes)))


@given(cases(), st.sampled_from(tuple(ORDERS)), st.data())
def test_whatever_happens_every_request_runs_once_and_memory_is_kept(
    case: Case, order: str, data: st.DataObject
) -> None:
    known = case.by_place.copy()
    known[data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))] = np.nan
    job = _job(case)
    feeder = BatchFeeder(job, order, known)
    alive: set[int] = set()
    pinned: set[int] = set()
    over: list[int] = []
    now = 0.0
    while len(feeder) or alive:
        now += data.draw(st.floats(0, 100))
        room = Room(
            now,
            float(data.draw(st.integers(0, 400))),
            float(data.draw(st.sampled_from([0, 0, 100, 500]))) if alive else 0.0,
            data.draw(st.integers(1, 30)),
        )
        held = _prompt_bytes(case.tree, alive)
        fed = feeder.take(room)
        if fed and alive:  # the last one may be the one too many
            assert held < max(room.size_bytes - room.other_bytes, 0)
        if not alive:
            assert fed
        for each in fed:
            assert each.number not in alive and each.number not in over
            alive.add(each.number)
            for pin in each.pins:
                assert pin.pin_id not in pinned and pin.num_tokens > 0
                pinned.add(pin.pin_id)
        assert (order in ("fcfs", "random")) <= (not pinned)
        assert pinned == feeder.pinned and feeder.num_open == len(alive)
        what = data.draw(st.sampled_from(["end", "end", "abort", "back", "start"]))
        number = data.draw(st.sampled_from(sorted(alive)))
        if what == "start":
            feeder.started(number)
            continue
        alive.remove(number)
        if what == "back":
            feeder.put_back(number)
            continue
        pinned -= set(feeder.ended(number, case.outputs[number] if what == "end" else None))
        over.append(number)
    assert sorted(over) == list(range(len(case.sequences)))
    assert not pinned and feeder.open_bytes == 0


@given(cases(), st.sampled_from(tuple(ORDERS)), st.integers(1, 600))
def test_what_is_under_way_never_exceeds_memory_by_more_than_one_request(
    case: Case, order: str, size: int
) -> None:
    feeder = BatchFeeder(_job(case), order)
    alive: list[int] = []
    while len(feeder):
        for each in feeder.take(Room(0.0, float(size), 0.0, 1 << 40)):
            if alive:
                assert _prompt_bytes(case.tree, set(alive)) < size
            alive.append(each.number)
        first = alive.pop(0)
        feeder.ended(first, case.outputs[first])


@pytest.mark.parametrize("name", FIXED)
@given(case=cases(), chunk=st.integers(1, 40))
def test_a_fixed_order_is_kept(name: str, case: Case, chunk: int) -> None:
    job = _job(case)
    feeder = BatchFeeder(job, name)
    seen: list[int] = []
    while len(feeder):
        fed = feeder.take(Room(0.0, 300.0, 0.0, chunk))
        seen += [each.number for each in fed]
        for each in fed:
            feeder.ended(each.number, case.outputs[each.number])
    assert seen == order_requests(job, name).tolist()


KINDS = [Kind(0.5, 7, 320, 96, 20), Kind(0.5, 1, 0, 96, 160)]


def _large(count: int = 4000) -> tuple[OfflineJob, np.ndarray]:
    job = mixed_job(KINDS, count, np.random.default_rng(1))
    tree = build_tree(flat_prompts(job.ids, job.offsets), 16, own_tokens=1)
    outputs = known_lengths(job.output_tokens[tree.order].astype(np.float64))
    return OfflineJob(tree, outputs, MODEL, 1e9), job.output_tokens


def _run(feeder: BatchFeeder, outputs: np.ndarray, room: Room) -> list[list[Fed]]:
    """First in, first out; prompts are computed as soon as they are handed out."""
    handed: list[list[Fed]] = []
    alive: list[int] = []
    while len(feeder) or alive:
        handed.append(feeder.take(room))
        for each in handed[-1]:
            feeder.started(each.number)
            alive.append(each.number)
        done = alive.pop(0)
        feeder.ended(done, int(outputs[done]))
    return handed


def test_the_queue_of_a_large_job_is_short() -> None:
    job, outputs = _large()
    feeder = BatchFeeder(job, "batchllm")
    fed = feeder.take(AMPLE._replace(chunk_tokens=2048))
    lengths = job.tree.lengths[np.isin(job.tree.order, [each.number for each in fed])]
    assert 0 < len(fed) < 200
    assert 2 * 2048 <= lengths.sum() < 3 * 2048
    assert feeder.take(AMPLE._replace(chunk_tokens=2048)) == []
    feeder.started(fed[0].number)
    assert feeder.take(AMPLE._replace(chunk_tokens=2048))


@pytest.mark.parametrize("name", ["blend", "blend-groups", "batchllm"])
def test_without_lengths_a_sample_runs_first(name: str) -> None:
    job, outputs = _large(1000)
    unknown = np.full(len(outputs), np.nan)
    feeder = BatchFeeder(job, name, unknown)
    sample = sample_places(job.tree, np.random.default_rng(job.seed))
    first = feeder.take(AMPLE._replace(chunk_tokens=1))
    assert {each.number for each in first} <= set(job.tree.order[sample].tolist())
    handed = _run(BatchFeeder(job, name, unknown), outputs, Room(0.0, 2e5, 0.0, 512))
    numbers = [each.number for fed in handed for each in fed]
    assert numbers[: len(sample)] == job.tree.order[np.sort(sample)].tolist()
    assert sorted(numbers) == list(range(len(outputs)))


def test_learnt_lengths_lead_to_nearly_the_order_of_known_ones() -> None:
    job, outputs = _large(3000)
    unknown, room = np.full(len(outputs), np.nan), Room(0.0, 1e5, 0.0, 2048)
    by_known = [e.number for fed in _run(BatchFeeder(job, "batchllm"), outputs, room) for e in fed]
    learnt = _run(BatchFeeder(job, "batchllm", unknown), outputs, room)
    by_learnt = [e.number for fed in learnt for e in fed]
    is_long = outputs > 80
    # requests that decode most per prompt token go first, as soon as that is known
    half = len(outputs) // 2
    share_known, share_learnt = is_long[by_known[:half]].mean(), is_long[by_learnt[:half]].mean()
    assert share_known > 0.85 and share_learnt > share_known - 0.1
    assert is_long.mean() < 0.5


def test_prompts_are_computed_beside_a_few_very_long_requests() -> None:
    """They may have all memory in the mean over their lives; at first they hold next to nothing."""
    kinds = [Kind(0.9, 1, 0, 96, 2), Kind(0.1, 1, 0, 16, 4000)]
    job = mixed_job(kinds, 1000, np.random.default_rng(1))
    tree = build_tree(flat_prompts(job.ids, job.offsets), 16, own_tokens=1)
    outputs = known_lengths(job.output_tokens[tree.order].astype(np.float64))
    feeder = BatchFeeder(OfflineJob(tree, outputs, MODEL, 1e9), "blend")
    fed = feeder.take(Room(0.0, 40_000.0 * MODEL.kv_bytes, 0.0, 512))
    is_long = job.output_tokens[[each.number for each in fed]] > 1000
    assert 2 <= is_long.sum() < 20
    assert (~is_long).sum() > 2


def test_interactive_requests_push_the_job_back_at_once_and_for_a_while() -> None:
    job, _ = _large(1000)
    feeder = BatchFeeder(job, "blend")
    size = 1e5
    for each in feeder.take(Room(0.0, size, 0.0, 1 << 40)):
        feeder.started(each.number)
    assert size / 2 < feeder.open_bytes
    assert feeder.take(Room(1.0, 2 * size, 2 * size, 1 << 40)) == []
    assert feeder.take(Room(20.0, 2 * size, 0.0, 1 << 40)) == []
    assert feeder.take(Room(40.0, 2 * size, 0.0, 1 << 40))


def _idle_tokens(tree: PrefixTree, pinned: frozenset[int], alive: set[int]) -> int:
    """What is pinned and read by no request under way."""
    held: set[int] = set()
    for place in (place for place, number in enumerate(tree.order.tolist()) if number in alive):
        node = int(tree.leaf_node[place])
        while node:
            held.add(node)
            node = int(tree.parent[node])
    return int(sum(tree.edge_tokens[node] for node in pinned - held))


@given(cases(), st.data())
def test_idle_pins_leave_less_room(case: Case, data: st.DataObject) -> None:
    """The unit keeps batch requests from them, so what was fed beside them would only wait."""
    feeder = BatchFeeder(_job(case), "dfs")
    alive: set[int] = set()
    while len(feeder) or alive:
        idle = MODEL.kv_bytes * _idle_tokens(case.tree, feeder.pinned, alive)
        size = data.draw(st.integers(0, 400))
        held = feeder.open_bytes
        fed = feeder.take(Room(0.0, float(size), 0.0, 1 << 40))
        assert not (fed and alive) or held + idle < size
        alive |= {each.number for each in fed}
        number = data.draw(st.sampled_from(sorted(alive)))
        alive.remove(number)
        feeder.ended(number, case.outputs[number])
    assert not feeder.pinned


def test_a_sample_pins_nothing() -> None:
    """Its requests are spread over the job, and what they share is not needed again for long."""
    job, _ = _large()
    feeder = BatchFeeder(job, "blend", np.full(len(job.tree.order), np.nan))
    sample = set(job.tree.order[sample_places(job.tree, np.random.default_rng(job.seed))].tolist())
    fed = feeder.take(AMPLE)
    assert any(each.number in sample for each in fed)
    assert all(not each.pins for each in fed if each.number in sample)
    assert any(each.pins for each in fed if each.number not in sample)


def test_alone_in_the_unit_one_always_runs() -> None:
    job, _ = _large(100)
    feeder = BatchFeeder(job, "blend")
    assert feeder.take(Room(0.0, 100.0, 100.0, 1 << 40)) == []
    assert len(feeder.take(Room(1.0, 100.0, 0.0, 1 << 40))) == 1


def test_a_unit_that_was_lost_gets_its_requests_again_before_others() -> None:
    job, _ = _large(100)
    feeder = BatchFeeder(job, "dfs")
    fed = [each.number for each in feeder.take(AMPLE._replace(chunk_tokens=128))]
    for number in fed:
        feeder.put_back(number)
    assert feeder.num_open == feeder.open_bytes == 0 and feeder.pinned
    again = [each.number for each in feeder.take(AMPLE._replace(chunk_tokens=128))]
    assert again[: len(fed)] == fed


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown order 'lifo'"):
        BatchFeeder(_large(50)[0], "lifo")
