"""Feeding of parts inside a unit: each line once, whenever its request comes; pins end with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartOver
from muxcluster.core.events import Event, Finished, FinishReason, StepOutput
from muxcluster.core.request import PinnedPrefix, Request, ServiceClass
from muxcluster.core.sampling import SamplingParams
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.parts import feeder_of_part, part_of
from muxcluster.offline.order.orders import ORDERS, OfflineJob
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.offline.prefix.tree import build_tree
from muxcluster.offline.unit_feeder import FedPart, PartRenewal, PartRenewed, UnitFeeder
from tests.offline.blend_cases import MODEL
from tests.scheduling.rig import model_spec, unit_spec

SPEC = unit_spec([model_spec("a"), model_spec("b")], token_budget=64)
SHARED = 16
OUTPUT = 8


class _Space(NamedTuple):
    num_blocks: int
    other_blocks: int = 0


class _Memory:
    """So much memory, and what is pinned in it."""

    def __init__(self, num_blocks: int = 10**6) -> None:
        self.now = _Space(num_blocks)
        self.pinned: dict[str, PinnedPrefix] = {}

    def space(self, name: str | None) -> _Space:
        return self.now

    def pin(self, prefix: PinnedPrefix) -> None:
        assert prefix.pin_id not in self.pinned
        self.pinned[prefix.pin_id] = prefix

    def unpin(self, pin_id: str) -> None:
        self.pinned.pop(pin_id, None)  # as in a unit, an unknown one is ignored


def _prompts(count: int, seed: int) -> list[np.ndarray]:
    """Two families, each sharing `SHARED` tokens."""
    rng = np.random.default_rng(seed)
    heads = rng.integers(0, 1000, (2, SHARED))
    return [
        np.concatenate((heads[i % 2], rng.integers(0, 1000, 4 + i % 3))).astype(np.int32)
        for i in range(count)
    ]


def _part(part_id: str, model: str = "a", count: int = 6, order: str = "dfs") -> BatchPart:
    prompts = token_prompts(_prompts(count, len(part_id)))
    outputs = known_lengths(np.full(count, float(OUTPUT)))
    job = OfflineJob(build_tree(prompts, 8, own_tokens=1), outputs, MODEL, 1e9)
    return part_of(part_id, model, job, order, np.full(count, np.nan))


def _request(part: BatchPart, number: int, suffix: str = "") -> Request:
    tokens = _prompts(len(part), len(part.part_id))[number]
    return Request(
        f"{part.part_id}-{number}{suffix}",
        part.model,
        tokens,
        SamplingParams(max_tokens=OUTPUT),
        service_class=ServiceClass.BATCH,
        line=LinePlace(part.part_id, number),
    )


def _output(tokens: Sequence[tuple[str, int]], events: Sequence[Event] = ()) -> StepOutput:
    counts = np.array([count for _, count in tokens], dtype=np.int32)
    ids = [request_id for request_id, _ in tokens]
    return StepOutput(ids, np.zeros(int(counts.sum()), np.int32), counts, {}, {}, tuple(events))


def _end(request_id: str, reason: FinishReason = FinishReason.LENGTH) -> StepOutput:
    return _output([(request_id, OUTPUT)], [Finished(request_id, reason)])


def _feeder(memory: _Memory, *parts: BatchPart) -> UnitFeeder:
    feeder = UnitFeeder(SPEC, memory)
    for part in parts:
        feeder.add(FedPart.of(part))
    return feeder


def test_a_part_is_the_job_that_it_was_made_of() -> None:
    part = _part("p", order="blend")
    feeder = feeder_of_part(part)
    assert len(feeder) == len(part)
    assert feeder.kv_bytes == MODEL.kv_bytes
    with pytest.raises(ValueError, match="unknown order"):
        FedPart.of(replace(part, order="best"))


def test_lines_wait_for_their_turn_and_pins_end_with_the_last() -> None:
    memory, part = _Memory(), _part("p")
    feeder = _feeder(memory, part)
    for number in range(6):
        assert feeder.hold(_request(part, number))
    assert len(feeder) == 6
    started: list[str] = []
    while len(feeder):
        taken = feeder.take(0.0)
        assert taken, "there is room for all"
        started += [each.request_id for each in taken]
        for each in taken:
            feeder.note(_output([(each.request_id, 1)]))
    assert sorted(started) == [f"p-{number}" for number in range(6)]
    assert {len(each.tokens) for each in memory.pinned.values()} == {SHARED}
    assert len(memory.pinned) == 2
    for request_id in started:
        assert memory.pinned
        feeder.note(_end(request_id))
    assert not memory.pinned
    assert feeder.next_s is None


def test_a_line_whose_turn_was_before_it_came_starts_when_it_comes() -> None:
    memory, part = _Memory(), _part("p", count=2)
    feeder = _feeder(memory, part)
    assert feeder.take(0.0) == []
    assert not memory.pinned
    assert not feeder.hold(_request(part, 1))
    assert len(memory.pinned) <= 1
    feeder.note(_end("p-1"))
    assert feeder.next_s is None, "both lines are under way"


def test_lines_that_never_come_hold_nothing() -> None:
    memory, part = _Memory(), _part("p")
    feeder = _feeder(memory, replace(part, over=(0, 1)))
    feeder.tell(LineOver(LinePlace("p", 2)))
    assert feeder.take(0.0) == []
    for number in (3, 4, 5):
        feeder.tell(LineOver(LinePlace("p", number)))
    feeder.take(0.0)
    assert feeder.next_s is None
    assert not memory.pinned


def test_requests_without_a_part_here_start_at_once() -> None:
    feeder = _feeder(_Memory(), replace(_part("other"), model="not here"))
    assert not feeder.hold(_request(_part("p"), 0))
    assert not feeder.hold(_request(replace(_part("other"), model="a"), 0))
    assert not feeder.hold(replace(_request(_part("p"), 0), line=None))


def test_without_room_nothing_starts_and_one_may_run_alone() -> None:
    memory, part = _Memory(0), _part("p")
    feeder = _feeder(memory, part)
    for number in range(6):
        feeder.hold(_request(part, number))
    memory.now = _Space(10, 10)
    assert feeder.take(0.0) == []
    assert feeder.next_s is not None
    memory.now = _Space(0)
    (first,) = feeder.take(31.0)
    assert feeder.take(31.0) == []
    feeder.note(_end(first.request_id))
    assert len(feeder.take(31.0)) == 1


def test_an_aborted_line_does_not_start_and_a_dropped_part_lets_its_lines_go() -> None:
    memory, part = _Memory(), _part("p", count=30)
    feeder = _feeder(memory, part)
    requests = [_request(part, number) for number in range(30)]
    for each in requests:
        feeder.hold(each)
    assert feeder.abort("p-0")
    assert not feeder.abort("p-0")
    (first, *_) = feeder.take(0.0)
    waiting = len(feeder)
    assert first.request_id != "p-0" and waiting
    feeder.tell(PartOver("p"))
    assert not memory.pinned
    assert len(feeder.take(0.0)) == waiting
    feeder.note(_end(first.request_id))


def test_a_line_of_several_requests_is_over_with_the_last() -> None:
    memory, part = _Memory(), _part("p", count=1)
    feeder = _feeder(memory, part)
    for suffix in "xy":
        feeder.hold(_request(part, 0, suffix))
    assert {each.request_id for each in feeder.take(0.0)} == {"p-0x", "p-0y"}
    fed = feeder._parts["p"]
    feeder.note(_end("p-0x"))
    assert not fed.is_over
    feeder.note(_end("p-0y", FinishReason.STOP))
    assert fed.is_over


def test_the_most_urgent_part_of_a_model_is_fed_first() -> None:
    late, soon = replace(_part("late"), urgency=9.0), replace(_part("soon"), urgency=1.0)
    feeder = _feeder(_Memory(), late, soon)
    for number in range(6):
        feeder.hold(_request(late, number))
        feeder.hold(_request(soon, number))
    first = feeder.take(0.0)
    assert first
    assert {each.line.part_id for each in first if each.line} == {"soon"}


def test_models_take_turns_if_their_parts_say_so() -> None:
    first = _part("first", "a", count=2)
    second = replace(_part("second", "b", count=2), after=("a",))
    feeder = _feeder(_Memory(), first, second)
    for part in (first, second):
        for number in range(2):
            feeder.hold(_request(part, number))
    taken = feeder.take(0.0)
    assert {each.model for each in taken} == {"a"}
    assert feeder.take(0.0) == []
    for each in taken:
        feeder.note(_end(each.request_id))
    assert {each.model for each in feeder.take(0.0)} == {"b"}


@given(st.data(), st.sampled_from(tuple(ORDERS)))
def test_whatever_happens_each_line_starts_once_and_no_pin_is_left(
    data: st.DataObject, order: str
) -> None:
    memory = _Memory()
    parts = [_part("p", "a", 5, order), _part("qq", "a", 4, order), _part("rrr", "b", 3, order)]
    feeder = _feeder(memory, *parts)
    coming = [(part, number) for part in parts for number in range(len(part))]
    started: list[str] = []
    ended: list[str] = []
    gone: list[str] = []
    making: list[PartRenewed] = []
    now = 0.0
    while len(started) + len(gone) < 12 or len(ended) < len(started):
        now += data.draw(st.sampled_from([0.0, 1.0, 40.0]))
        memory.now = _Space(data.draw(st.sampled_from([0, 1, 4, 10**6])))
        if coming:
            part, number = coming.pop(data.draw(st.integers(0, len(coming) - 1)))
            request = _request(part, number)
            if data.draw(st.integers(0, 4)) == 0:
                feeder.tell(LineOver(LinePlace(part.part_id, number)))
                gone.append(request.request_id)
            elif not feeder.hold(request):
                started.append(request.request_id)
        started += [each.request_id for each in feeder.take(now)]
        making += [each.run() for each in feeder.renewals()]
        if making and data.draw(st.booleans()):
            feeder.renew(making.pop())
        running = [each for each in started if each not in ended]
        if running and (not coming or data.draw(st.booleans())):
            done = running[data.draw(st.integers(0, len(running) - 1))]
            feeder.note(_end(done))
            ended.append(done)
    feeder.take(now + 40)
    assert len(set(started)) == len(started)
    assert not set(started) & set(gone)
    assert not memory.pinned
    assert feeder.next_s is None and len(feeder) == 0


def test_a_plan_is_renewed_when_the_caller_has_made_it() -> None:
    part = _part("p", count=120, order="batchllm")
    feeder = _feeder(_Memory(), part)
    for number in range(120):
        feeder.hold(_request(part, number))
    assert feeder.renewals() == []
    renewals: list[PartRenewal] = []
    order: list[str] = []
    while len(feeder):
        for each in feeder.take(0.0):
            order.append(each.request_id)
            feeder.note(_end(each.request_id))
        again = feeder.renewals()
        assert not (renewals and again), "one is under way"
        renewals += again
    assert sorted(order) == sorted(f"p-{number}" for number in range(120))
    (renewal,) = renewals
    assert renewal.part_id == "p"
    feeder.renew(renewal.run())
    feeder.tell(PartOver("p"))
    feeder.renew(renewal.run())
