"""A unit that feeds parts of a batch to itself: each line's tokens, once, whatever happens."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartOver
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request, ServiceClass
from muxcluster.engine.unit import unit as unit_module
from muxcluster.engine.unit.deltas import BatchDeltas
from muxcluster.engine.unit.unit import Unit
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.parts import part_of
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.offline.prefix.tree import build_tree
from muxcluster.offline.process.side import SideProcess
from muxcluster.offline.unit_feeder import PartRenewed
from tests.blocks import block_tokens, scaled
from tests.engine.fakes import FakeExecutor, Sink, expected, fake_spec, request
from tests.offline.blend_cases import MODEL

COUNT, OUTPUT, SHARED = 24, 6, 32


def _prompts(count: int = COUNT) -> list[list[int]]:
    """Two families."""
    rng = np.random.default_rng(0)
    heads = rng.integers(1, 90, (2, SHARED))
    return [[*heads[i % 2].tolist(), *rng.integers(1, 90, 5).tolist()] for i in range(count)]


def _part(order: str, count: int = COUNT) -> BatchPart:
    return _part_of(order, _prompts(count), np.full(count, np.nan))


def _part_of(order: str, lines: Sequence[Sequence[int]], known: NDArray[np.float64]) -> BatchPart:
    prompts = token_prompts([np.array(each, dtype=np.int32) for each in lines])
    outputs = known_lengths(np.full(len(lines), float(OUTPUT)))
    tree = build_tree(prompts, block_tokens(16), own_tokens=1)
    return part_of("p", "wide", OfflineJob(tree, outputs, MODEL, 1e9), order, known)


def _lines(prompts: Sequence[Sequence[int]]) -> list[Request]:
    return [
        replace(
            request(f"line {number}", "wide", prompt, OUTPUT),
            service_class=ServiceClass.BATCH,
            line=LinePlace("p", number),
        )
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("order", ["dfs", "blend", "batchllm", "random"])
@pytest.mark.parametrize("fate", ["done", "owner lost"])
def test_all_lines_get_their_tokens(order: str, fate: str) -> None:
    sink, prompts = Sink(), _prompts()
    script = ["done"] * 7 + [fate]
    unit = Unit(fake_spec(num_columns=24), sink, executor=FakeExecutor(script))
    unit.start()
    try:
        lines = _lines(prompts)
        for line in lines[:4]:
            unit.submit(line)
        unit.feed(_part(order))
        for line in lines[4:]:
            unit.submit(line)
        unit.submit(request("beside", "narrow", [1, 2, 3], 5))
        # the sample of an unknown order may wait for lines 0 to 3, which ran without their part
        for number in range(4):
            unit.feed(LineOver(LinePlace("p", number)))
        sink.wait_for_ends(COUNT + 1)
        for number, prompt in enumerate(prompts):
            assert sink.tokens[f"line {number}"] == expected(prompt, OUTPUT)
        assert sink.tokens["beside"] == expected([1, 2, 3], 5)
        unit.feed(PartOver("p"))
        assert unit.num_open == 0
    finally:
        unit.close()


def test_a_long_part_is_planned_again_in_another_process(monkeypatch) -> None:
    """The same plan as one made here; the process ends with the unit."""
    monkeypatch.setattr(unit_module, "_FEW_LINES", 0)
    called: list[tuple[PartRenewed, PartRenewed]] = []
    pids = set()

    def call(self: SideProcess, work: Callable[[], PartRenewed]) -> PartRenewed:
        found = process_call(self, work)
        called.append((work(), found))
        pids.add(self.pid)
        return found

    process_call = SideProcess.call
    monkeypatch.setattr(SideProcess, "call", call)
    count = 10 * COUNT
    sink, prompts = Sink(), _prompts(count)
    unit = Unit(fake_spec(num_columns=24), sink, executor=FakeExecutor(["done"]))
    unit.start()
    try:
        unit.feed(_part("blend", count))
        lines = _lines(prompts)
        for line in lines[:-COUNT]:
            unit.submit(line)
        until_s = time.monotonic() + 60.0
        while not called and time.monotonic() < until_s:
            time.sleep(0.01)
        for line in lines[-COUNT:]:
            unit.submit(line)
        sink.wait_for_ends(count, 60.0)
        for number, prompt in enumerate(prompts):
            assert sink.tokens[f"line {number}"] == expected(prompt, OUTPUT)
    finally:
        unit.close()
    assert called
    for here, there in called:
        assert here.part_id == there.part_id == "p"
        assert here.renewed.line is not None
        assert there.renewed.line is not None
        np.testing.assert_array_equal(here.renewed.outputs.mean, there.renewed.outputs.mean)
        np.testing.assert_array_equal(here.renewed.line.places, there.renewed.line.places)
    (pid,) = pids
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("is_needed", [True, False], ids=["needed", "given up"])
def test_a_prefix_stays_while_a_line_of_the_part_needs_it(is_needed: bool) -> None:
    sink, shared = Sink(), list(range(100, 100 + scaled(64, 16)))  # four of the pool's ten columns
    first, last = _lines([[*shared, 1], [*shared, 2]])
    unit = Unit(fake_spec(num_columns=10), sink, executor=FakeExecutor())
    unit.start()
    try:
        prompts = [each.prompt_tokens.tolist() for each in (first, last)]
        unit.feed(_part_of("batchllm", prompts, np.full(2, float(OUTPUT))))
        unit.submit(first)
        sink.wait_for_ends(1)
        if not is_needed:
            unit.feed(PartOver("p"))
        others = [
            replace(
                request(f"other {token}", "wide", [token] * scaled(60, 16), OUTPUT),
                service_class=ServiceClass.BATCH,
            )
            for token in range(200, 206)
        ]
        for other in others:
            unit.submit(other)
        sink.wait_for_ends(1 + len(others))
        unit.submit(last)
        sink.wait_for_ends(2 + len(others))
        for each in (first, *others, last):
            assert sink.tokens[each.request_id] == expected(each.prompt_tokens.tolist(), OUTPUT)
        hits = {model.name: model.prefix_hits for model in unit.stats().models}
        assert hits["wide"] == (len(shared) if is_needed else 0)
    finally:
        unit.close()


def test_lines_that_wait_end_with_abort_and_are_no_stall() -> None:
    sink = Sink()
    unit = Unit(fake_spec(), sink, executor=FakeExecutor(["hold"]))
    unit.start()
    try:
        # none of the first part's lines comes, so the second's have no turn
        unit.feed(replace(_part("dfs"), part_id="q", model="narrow"))
        unit.feed(replace(_part("blend"), after=("narrow",)))
        lines = _lines(_prompts())
        for line in lines:
            unit.submit(line)
        while unit.last_step_age_s():
            time.sleep(0.001)  # until the unit's thread holds them
        for line in lines:
            unit.abort(line.request_id)
        sink.wait_for_ends(COUNT)
        assert {sink.reason(line.request_id) for line in lines} == {FinishReason.ABORT}
        assert unit.num_open == 0
    finally:
        unit.close()


def test_closing_ends_lines_that_wait() -> None:
    sink = Sink()
    unit = Unit(fake_spec(), sink, executor=FakeExecutor(["hold"]))
    unit.start()
    unit.feed(_part("dfs"))
    for line in _lines(_prompts()):
        unit.submit(line)
    unit.close()
    assert len(sink.ends) == COUNT
    unit.feed(_part("dfs"))


def test_output_of_lines_is_merged_and_others_is_not() -> None:
    deltas = BatchDeltas()
    deltas.follow("line")
    one = TokenDelta((1,))
    assert deltas.due({"line": one, "other": one}) == {"other": one}
    for _ in range(14):
        assert deltas.due({"line": one}) == {}
    assert deltas.due({"line": one}) == {"line": TokenDelta((1,) * 16)}
    assert deltas.due({"line": one}) == {}
    end = TokenDelta((2,), finished=Finished("line", FinishReason.LENGTH))
    assert deltas.due({"line": end}) == {"line": replace(end, tokens=(1, 2))}
    assert deltas.due({"line": one}) == {"line": one}, "it is over"
    deltas.follow("line")
    deltas.due({"line": one})
    deltas.clear()
    assert deltas.due({"line": one}) == {"line": one}
