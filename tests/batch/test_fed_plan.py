"""A plan that gives a batch to its units piece by piece: each line once, the next piece in time."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from muxcluster.batch.plan.fed_plan import FedPlan
from muxcluster.batch.plan.piece import Learnt, PlannedPart, PlannedPiece, PromptTable
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.core.batch_part import BatchPart, LinePlace
from muxcluster.core.errors import EngineFailure
from muxcluster.http.calls.call import Prompt


class _Sink:
    """Keeps what units are told."""

    def __init__(self) -> None:
        self.unit_of: dict[str, str] = {}
        self.ended: list[LinePlace] = []
        self.over: list[str] = []

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        self.unit_of[part.part_id] = unit_id

    def end_line(self, place: LinePlace) -> None:
        assert place.part_id not in self.over
        self.ended.append(place)

    def end_part(self, part_id: str) -> None:
        self.over.append(part_id)


class _Plans:
    """Divides a piece among two units, backwards; every tenth line has no plan."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.learnt: list[Learnt] = []
        self.error: Exception | None = None

    async def __call__(self, lines: Sequence[Pending], learnt: Learnt) -> PlannedPiece:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.sizes.append(len(lines))
        self.learnt.append(learnt)
        planned = [line.line for line in lines if line.line % 10]
        parts = [
            self._part(f"{len(self.sizes)}/{unit}", unit, planned[start::2])
            for start, unit in enumerate(("u", "v"))
        ]
        unplanned = [line.line for line in lines if not line.line % 10]
        known = Learnt({"m": "dfs"}, {}, learnt.output_tokens)
        return PlannedPiece(parts, unplanned, PromptTable.of({}), known)

    def _part(self, part_id: str, unit_id: str, lines: Sequence[int]) -> PlannedPart:
        one = np.ones(len(lines))
        part = BatchPart(part_id, "m", "dfs", {}, one, one, {}, 1.0)
        numbers = np.arange(len(lines))
        return PlannedPart(part, unit_id, np.array(lines, dtype=np.int64), numbers[::-1])


def _lines(count: int) -> list[Pending]:
    return [Pending(line, 0, 0, "m", 1) for line in range(count)]


def _plan(plans: _Plans, sink: _Sink, count: int, closed: list[bool]) -> FedPlan:
    return FedPlan(
        PendingLines.of(_lines(count)), plans, sink, 3, lambda: closed.append(True), piece_lines=40
    )


def test_all_lines_start_once_and_pieces_are_planned_as_the_last_one_ends() -> None:
    plans, sink, closed = _Plans(), _Sink(), list[bool]()

    async def run() -> list[int]:
        plan = _plan(plans, sink, 100, closed)
        await plan.begin()
        assert (plans.sizes, len(plan), plan.orders) == ([40], 100, {"m": "dfs"})
        open_lines: list[int] = []
        order: list[int] = []
        most = 0
        while len(plan) or open_lines:
            await asyncio.sleep(0)
            while taken := [line.line for line in plan.take()]:
                open_lines += taken
                order += taken
            most = max(most, len(open_lines))
            assert sum(plan.place(line) is None for line in open_lines) <= 3
            if open_lines:
                plan.ended(open_lines.pop(0), 4)
        assert most < 80
        plan.close()
        return order

    order = asyncio.run(run())
    assert sorted(order) == list(range(100))
    assert plans.sizes == [40, 40, 20]
    assert plans.learnt[0].output_tokens == {}
    assert plans.learnt[1].output_tokens == {"m": 4.0}
    assert sorted(sink.over) == sorted(sink.unit_of)
    # the last line of a part needs no word of its own
    assert len(sink.ended) == 90 - len(sink.unit_of)
    assert closed == [True]


def test_lines_come_in_the_planned_order_of_both_units() -> None:
    async def run() -> list[int]:
        plan = _plan(_Plans(), _Sink(), 9, [])
        await plan.begin()
        return [line.line for line in plan.take()]

    # line 0 has no plan; of the others each unit has every second, backwards
    assert asyncio.run(run()) == [0, 7, 8, 5, 6, 3, 4, 1, 2]


def test_a_plan_that_is_given_up_ends_its_parts() -> None:
    sink, closed = _Sink(), list[bool]()

    async def run() -> None:
        plan = _plan(_Plans(), sink, 50, closed)
        await plan.begin()
        plan.take()
        plan.close()

    asyncio.run(run())
    assert sorted(sink.over) == ["1/u", "1/v"]
    assert closed == [True]


def test_what_planning_a_later_piece_raises_is_raised_by_take() -> None:
    plans = _Plans()

    async def run() -> None:
        plan = _plan(plans, _Sink(), 100, [])
        await plan.begin()
        plans.error = EngineFailure("broken")
        taken = list(plan.take())
        while True:
            for line in taken:
                plan.ended(line.line, None)
            await asyncio.sleep(0)
            taken = list(plan.take())

    with pytest.raises(EngineFailure, match="broken"):
        asyncio.run(run())


def test_prompts_survive_as_arrays() -> None:
    prompts = {
        7: (Prompt("text", np.array([1, 2], dtype=np.int32), 5),),
        3: (
            Prompt("", np.array([4], dtype=np.int32), 6),
            Prompt("x", np.array([5, 6, 7], dtype=np.int32), 8),
        ),
    }
    found = PromptTable.of(prompts).by_line()
    assert list(found) == [7, 3]
    for line, each in prompts.items():
        for want, have in zip(each, found[line], strict=True):
            assert (have.text, have.max_tokens) == (want.text, want.max_tokens)
            assert have.tokens.tolist() == want.tokens.tolist()
    assert PromptTable.of({}).by_line() == {}
