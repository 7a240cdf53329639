"""The batch service in the process that owns its folder: files, batches, runs of open batches."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from muxcluster.batch.service.answers import Answerer
from muxcluster.batch.service.api_objects import batch_object, file_object
from muxcluster.batch.service.interface import PURPOSE, ApiObject, BatchRequest, Figures
from muxcluster.batch.service.planning import FileOrder, Planner
from muxcluster.batch.service.runner import BatchRunner, RunnerSettings
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.batch.store.entry import ENDPOINTS
from muxcluster.batch.store.files import FilePage, FileStore
from muxcluster.batch.store.intake import Limits
from muxcluster.batch.store.job import OPEN, Batch, Order, Status, window_s
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import InvalidValue, NotFound, StorageFailed

logger = logging.getLogger(__name__)

STORAGE_RETRY_S = 5.0
SURPRISE_RETRY_S = 30.0  # until a batch is run again that failed by a fault of ours
MODELS_PERIOD_S = 0.1


class LocalBatchService:
    """A `BatchService` over a folder that no other process may use."""

    def __init__(
        self,
        directory: Path,
        answerer: Answerer,
        models: Callable[[], Collection[str]],
        settings: BatchSettings,
        planner: Planner | None = None,
    ) -> None:
        """models: returns the names served now; batches start once there are any. planner: None
        runs lines in the order of their file.

        Raises ConfigError if another process has the folder, StorageFailed.
        """
        self._store = BatchStore(directory)
        self._files = FileStore(self._store, settings.max_file_bytes)
        self._models = models
        limits = Limits(settings.max_line_bytes, settings.max_lines)
        self._answerer = answerer
        self._runner = BatchRunner(
            self._store,
            self._answerer,
            planner or FileOrder(),
            models,
            RunnerSettings(settings.max_running, limits, STORAGE_RETRY_S),
        )
        self._runs: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        for batch in await asyncio.to_thread(self._store.open_batches):
            self._begin(batch)

    async def close(self) -> None:
        runs = tuple(self._runs.values())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await asyncio.to_thread(self._store.close)

    def _begin(self, batch: Batch) -> None:
        run = asyncio.create_task(self._run(batch.batch_id))
        self._runs[batch.batch_id] = run
        run.add_done_callback(lambda _: self._runs.pop(batch.batch_id, None))

    async def _run(self, batch_id: str) -> None:
        """Run the batch to its end; try again after every failure."""
        while not self._models():
            await asyncio.sleep(MODELS_PERIOD_S)
        while True:
            try:
                await self._runner.run(batch_id)
                self._runner.waits.end(batch_id)
                return
            except StorageFailed as error:
                self._runner.waits.begin(batch_id, error)
                await asyncio.sleep(STORAGE_RETRY_S)
            except Exception:
                logger.exception("%s failed and is run again", batch_id)
                await asyncio.sleep(SURPRISE_RETRY_S)

    async def begin(self, owner: str) -> str:
        return await asyncio.to_thread(self._files.begin, owner)

    async def add(self, upload_id: str, data: bytes) -> None:
        await asyncio.to_thread(self._files.add, upload_id, data)

    async def finish(self, upload_id: str, name: str, purpose: str) -> ApiObject:
        if purpose != PURPOSE:
            raise InvalidValue(f"purpose: expected {PURPOSE}, found {purpose!r:.40}", "purpose")
        file = await asyncio.to_thread(self._files.finish, upload_id, name, purpose, _now())
        return file_object(file)

    async def abandon(self, upload_id: str) -> None:
        await asyncio.to_thread(self._files.abandon, upload_id)

    async def file(self, owner: str, file_id: str) -> ApiObject:
        return file_object(await asyncio.to_thread(self._files.get, owner, file_id))

    async def files(self, owner: str, page: FilePage) -> list[ApiObject]:
        found = await asyncio.to_thread(self._files.listed, owner, page)
        return [file_object(file) for file in found]

    async def delete(self, owner: str, file_id: str) -> ApiObject:
        await asyncio.to_thread(self._files.delete, owner, file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    async def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes:
        return await asyncio.to_thread(self._files.read, owner, file_id, offset, count)

    async def create(self, owner: str, asked: BatchRequest) -> ApiObject:
        if asked.endpoint not in ENDPOINTS:
            expected = " or ".join(ENDPOINTS)
            message = f"endpoint: expected {expected}, found {asked.endpoint!r:.60}"
            raise InvalidValue(message, "endpoint")
        now, seconds = _now(), window_s(asked.window)
        file = await asyncio.to_thread(self._files.get, owner, asked.input_file_id)
        if file.purpose != PURPOSE:
            raise InvalidValue(f"{file.file_id} was not uploaded for batches", "input_file_id")
        order = Order(
            owner, file.file_id, asked.endpoint, asked.window, now + seconds, asked.metadata
        )
        batch = await asyncio.to_thread(self._store.create, order, now)
        self._begin(batch)
        return self._object(batch)

    async def batch(self, owner: str, batch_id: str) -> ApiObject:
        return self._object(await asyncio.to_thread(self._owned, owner, batch_id))

    async def batches(self, owner: str, count: int, after: str | None) -> list[ApiObject]:
        if after is not None:
            await asyncio.to_thread(self._owned, owner, after)
        found = await asyncio.to_thread(self._store.listed, owner, count, after)
        return [self._object(batch) for batch in found]

    async def cancel(self, owner: str, batch_id: str) -> ApiObject:
        batch = await asyncio.to_thread(self._owned, owner, batch_id)
        if batch.status not in OPEN:
            raise InvalidValue(f"the batch has ended: it is {batch.status}", "batch_id")
        batch = await asyncio.to_thread(self._store.cancel, batch_id, _now())
        if batch.status is Status.CANCELLING:
            self._runner.cancel(batch_id)
        return self._object(batch)

    async def figures(self) -> Figures:
        sql = (
            "SELECT status, count(*), sum(num_completed), sum(num_failed) FROM batches "
            "GROUP BY status"
        )
        rows = await asyncio.to_thread(self._store.rows, sql)
        found = {status: count for status, count, _, _ in rows}
        num_lines = {
            "completed": sum(row[2] for row in rows),
            "failed": sum(row[3] for row in rows),
        }
        used = self._answerer.used
        num_tokens = {"prompt": used.prompt, "cached": used.cached, "output": used.output}
        by_status = {status.value: found.get(status.value, 0) for status in Status}
        waits = self._runner.waits
        return Figures(by_status, num_lines, num_tokens, len(waits), waits.num_failures)

    def _owned(self, owner: str, batch_id: str) -> Batch:
        try:
            batch = self._store.get(batch_id)
        except KeyError:
            batch = None
        if batch is None or batch.order.owner != owner:
            raise NotFound(f"no batch {batch_id[:80]!r}", "batch_id")
        return batch

    def _object(self, batch: Batch) -> ApiObject:
        progress = self._runner.progress(batch.batch_id)
        waits_for = self._runner.waits.reason(batch.batch_id)
        left_s = None if progress is None or waits_for is not None else progress.left_s()
        return batch_object(batch, None if left_s is None else time.time() + left_s, waits_for)


def _now() -> int:
    return int(time.time())
