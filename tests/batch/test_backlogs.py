"""How much batch work waits, by model, as the controller is told."""

import asyncio
import time
from pathlib import Path

import pytest

from muxcluster.batch.service.answers import Answer
from muxcluster.batch.service.planning import FileOrder
from muxcluster.batch.service.runner import BatchRunner, RunnerSettings
from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.intake import Intake, Limits
from muxcluster.batch.store.job import Order, Use
from muxcluster.batch.store.store import BatchStore, Result
from tests.batch.jobs import MODELS, line_of

HOUR_S = 3600


class _Held:
    """Answers as many lines as it was told to, and lets the others wait."""

    def __init__(self) -> None:
        self.used = Use()
        self.may_answer = asyncio.Semaphore(0)

    async def answer(self, line: int, entry: Entry, *_) -> Answer:
        await self.may_answer.acquire()
        return Answer(Result(line, True, b"{}"), 3)


def _submitted(store: BatchStore, name: str, models: list[str], deadline_s: int | None) -> None:
    lines = [line_of(f"r{i}", body={"model": m, "prompt": "hi"}) for i, m in enumerate(models)]
    store.path_of(f"in-{name}").write_bytes(b"".join(line + b"\n" for line in lines))
    batch = store.create(Order("me", f"in-{name}", None, deadline_s=deadline_s), 1, name)
    Intake(store, batch, MODELS, Limits()).run(2)


async def _until(holds) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def test_what_waits_falls_with_each_line_and_counts_until_its_deadline(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    soon = int(time.time()) + 2 * HOUR_S
    _submitted(store, "a", ["tiny", "tiny", "other"], soon)
    _submitted(store, "b", ["tiny"], None)
    weight = store.pending("b")[0].weight  # of all lines: they are alike
    per_s = weight / (2 * HOUR_S)

    async def run() -> None:
        answerer = _Held()
        runner = BatchRunner(store, answerer, FileOrder(), lambda: MODELS, RunnerSettings())
        assert runner.backlogs() == {}
        first = asyncio.create_task(runner.run("a"))
        await _until(lambda: len(runner.backlogs()) == 2)
        assert runner.backlogs() == {
            "tiny": pytest.approx(2 * per_s, rel=0.02),
            "other": pytest.approx(per_s, rel=0.02),
        }
        # without a deadline it may take a day
        second = asyncio.create_task(runner.run("b"))
        whole = pytest.approx(2 * per_s + weight / (24 * HOUR_S), rel=0.02)
        await _until(lambda: runner.backlogs()["tiny"] == whole)
        before = sum(runner.backlogs().values())
        answerer.may_answer.release()
        await _until(lambda: sum(runner.backlogs().values()) < before - weight / (25 * HOUR_S))
        for _ in range(3):
            answerer.may_answer.release()
        await asyncio.gather(first, second)
        assert runner.backlogs() == {}

    asyncio.run(run())
    store.close()


def test_a_late_batch_does_not_count_as_all_work_there_is(tmp_path: Path) -> None:
    store = BatchStore(tmp_path)
    _submitted(store, "a", ["tiny"], int(time.time()) + 10)
    weight = store.pending("a")[0].weight

    async def run() -> None:
        answerer = _Held()
        runner = BatchRunner(store, answerer, FileOrder(), lambda: MODELS, RunnerSettings())
        task = asyncio.create_task(runner.run("a"))
        await _until(runner.backlogs)
        assert runner.backlogs() == {"tiny": pytest.approx(weight / HOUR_S)}
        answerer.may_answer.release()
        await task

    asyncio.run(run())
    store.close()
