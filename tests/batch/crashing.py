"""A process that runs a batch and dies at a chosen moment: `python -m tests.batch.crashing`.

Arguments: the store's folder, the moment's name, how many times it passes first. The answers are
those of a fake, so that 10,000 lines take seconds.
"""

import asyncio
import os
import random
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from muxcluster.batch.service.answers import Answer, Answerer, OnTokens
from muxcluster.batch.service.planning import FileOrder
from muxcluster.batch.service.runner import BatchRunner, Ended, RunnerSettings
from muxcluster.batch.store.entry import Entry
from muxcluster.batch.store.job import Use
from muxcluster.batch.store.results import answered
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.batch_part import LinePlace
from tests.batch.jobs import MODELS

MOMENTS = ("answering", "half written", "written", "synced", "committing", "committed")
"""Of a result on its way: half of its line is in the file, all of it, surely, and recorded."""
NEVER = "never"


class Death:
    """Ends this process without a chance to tidy up when `moment` comes for the (count + 1)th
    time."""

    def __init__(self, moment: str, count: int) -> None:
        self._moment = moment
        self._left = count

    def passes(self, moment: str) -> None:
        """Does not return where this is it."""
        if moment != self._moment:
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


class FakeAnswerer:
    """Answers after a random little while; a tenth of the lines fail."""

    def __init__(self, death: Death) -> None:
        self._death = death
        self._rng = random.Random(time.time_ns())

    async def answer(
        self,
        line: int,
        entry: Entry,
        batch_id: str,
        on_tokens: OnTokens,
        place: LinePlace | None = None,
    ) -> Answer:
        """As `Answerer.answer`."""
        await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.001)))
        on_tokens(1, is_first=True)
        self._death.passes("answering")
        status = 200 if line % 10 else 400
        result = answered(line, entry.custom_id, f"{batch_id}-{line}", {}, status)
        return Answer(replace(result, use=Use(3, 1, 2)), 2)


def watch_the_disk(death: Death) -> None:
    """Lets `death` see every write and commit of this process."""
    pwrite, fsync, connect = os.pwrite, os.fsync, sqlite3.connect

    def watched_pwrite(handle: int, data: memoryview, offset: int) -> int:
        num_written = pwrite(handle, data[: max(1, len(data) // 2)], offset)
        death.passes("half written")
        return num_written

    def watched_fsync(handle: int) -> None:
        death.passes("written")
        fsync(handle)
        death.passes("synced")

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if sql == "COMMIT":
                death.passes("committing")
            cursor = super().execute(sql, parameters)
            if sql == "COMMIT":
                death.passes("committed")
            return cursor

    def watched_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **options, factory=Watched)

    os.pwrite, os.fsync = watched_pwrite, watched_fsync
    sqlite3.connect = cast(Any, watched_connect)


def run_batch(folder: Path, death: Death) -> Ended:
    """Take batch "b" to its end."""
    store = BatchStore(folder)
    runner = BatchRunner(
        store,
        cast(Answerer, FakeAnswerer(death)),
        FileOrder(),
        lambda: MODELS,
        RunnerSettings(window=200),
    )
    try:
        return asyncio.run(runner.run("b"))
    finally:
        store.close()


if __name__ == "__main__":
    fate = Death(sys.argv[2], int(sys.argv[3]))
    watch_the_disk(fate)
    run_batch(Path(sys.argv[1]), fate)
