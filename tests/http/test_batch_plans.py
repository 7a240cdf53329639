"""A batch's runner starts lines when their plan says so, and tells the plan what became of them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.batch.service.answers import Answer, OnTokens
from muxcluster.batch.service.planning import FileOrder, LivePlan
from muxcluster.batch.service.runner import BatchRunner, RunnerSettings
from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.job import Batch, Status, Use
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.batch_part import LinePlace
from tests.batch.jobs import MODELS, line_of, result_of, submit


class _Answerer:
    """Every line gets a token, then as many in all as its number says; odd ones fail."""

    def __init__(self, log: list[tuple[object, ...]]) -> None:
        self._log = log

    async def answer(
        self,
        line: int,
        entry: Entry,
        batch_id: str,
        on_tokens: OnTokens,
        place: LinePlace | None = None,
    ) -> Answer:
        self._log.append(("start", line))
        await asyncio.sleep(0)
        if line % 2:
            return Answer(result_of(Pending(line, 0, 0, "", 0)), None)
        on_tokens(1, is_first=True)
        on_tokens(line, is_first=False)
        await asyncio.sleep(0)
        return Answer(replace(result_of(Pending(line, 0, 0, "", 0)), use=Use(1, 0, line)), line)


class _OneByOne:
    """The last line first; the next when the one before has ended."""

    def __init__(self, lines: Sequence[Pending], log: list[tuple[object, ...]]) -> None:
        self._left, self._log, self._is_free = list(lines), log, True

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> Sequence[Pending]:
        if not self._is_free or not self._left:
            return ()
        self._is_free = False
        return (self._left.pop(),)

    def place(self, line: int) -> LinePlace | None:
        return None

    def started(self, line: int) -> None:
        self._log.append(("started", line))

    def ended(self, line: int, output_tokens: int | None) -> None:
        self._log.append(("ended", line, output_tokens))
        self._is_free = True

    def close(self) -> None:
        self._log.append(("close",))


class _Planner:
    def __init__(self, log: list[tuple[object, ...]]) -> None:
        self._log = log

    async def plan(self, batch: Batch, lines: PendingLines, file: Path) -> Sequence[LivePlan]:
        found = sorted(lines.take(len(lines)), key=lambda line: line.line)
        return (_OneByOne(found, self._log),)


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    found = BatchStore(tmp_path)
    submit(found, [line_of(f"r-{number}") for number in range(4)])
    return found


def test_lines_start_when_the_plan_says_so(store: BatchStore) -> None:
    log: list[tuple[object, ...]] = []
    runner = BatchRunner(store, _Answerer(log), _Planner(log), lambda: MODELS, RunnerSettings())
    ended = asyncio.run(runner.run("b"))
    assert ended.batch.status is Status.COMPLETED
    assert log == [
        ("start", 4),
        ("started", 4),
        ("ended", 4, 4),
        ("start", 3),
        ("ended", 3, None),
        ("start", 2),
        ("started", 2),
        ("ended", 2, 2),
        ("start", 1),
        ("ended", 1, None),
        ("close",),
    ]
    store.close()


def test_a_plan_is_closed_where_its_run_is_cancelled(store: BatchStore) -> None:
    log: list[tuple[object, ...]] = []

    class Stuck(_Answerer):
        async def answer(self, *_: object) -> Answer:
            log.append(("stuck",))
            runner.cancel("b")
            return await asyncio.Future()

    runner = BatchRunner(store, Stuck(log), _Planner(log), lambda: MODELS, RunnerSettings())
    ended = asyncio.run(runner.run("b"))
    assert ended.batch.status is Status.CANCELLED
    assert log == [("stuck",), ("close",)]
    store.close()


def test_no_more_lines_of_a_model_than_its_window_are_under_way(store: BatchStore) -> None:
    log: list[tuple[object, ...]] = []
    most = RunnerSettings(window=2)
    open_lines: set[int] = set()
    num_open: list[int] = []

    class Counting(_Answerer):
        async def answer(
            self,
            line: int,
            entry: Entry,
            batch_id: str,
            on_tokens: OnTokens,
            place: LinePlace | None = None,
        ) -> Answer:
            open_lines.add(line)
            num_open.append(len(open_lines))
            found = await super().answer(line, entry, batch_id, on_tokens)
            open_lines.remove(line)
            return found

    runner = BatchRunner(store, Counting(log), FileOrder(), lambda: MODELS, most)
    asyncio.run(runner.run("b"))
    assert sorted(log) == [("start", line) for line in (1, 2, 3, 4)]
    assert max(num_open) <= 2
    store.close()
