"""The batch service in the process that owns its folder: files, batches, runs of open batches."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from muxcluster.batch.service.answers import Answerer
from muxcluster.batch.service.api_objects import batch_object, file_object, has_news
from muxcluster.batch.service.interface import PURPOSE, ApiObject, BatchRequest, Figures
from muxcluster.batch.service.planning import FileOrder, JobFile, Planner
from muxcluster.batch.service.runner import BatchRunner, RunnerSettings
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.batch.store.entry import ENDPOINTS
from muxcluster.batch.store.files import FilePage, FileStore, StoredFile
from muxcluster.batch.store.intake import Limits
from muxcluster.batch.store.job import OPEN, Batch, Order, Status, window_s
from muxcluster.batch.store.quota import Quota, stored_bytes
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import InvalidValue, NotFound, StorageFailed

logger = logging.getLogger(__name__)

STORAGE_RETRY_S = 5.0
SURPRISE_RETRY_S = 30.0  # until a batch is run again that failed by a fault of ours
MODELS_PERIOD_S = 0.1
EXPIRY_PERIOD_S = 60.0  # how often expired files are deleted; they are invisible at once
NEWS_PERIOD_S = 0.5  # of a batch's counts, at most so often


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
        self._quota = Quota(self._store, settings.max_key_bytes)
        self._files = FileStore(self._store, settings.max_file_bytes, self._quota)
        self._models = models
        self._limits = limits = Limits(settings.max_line_bytes, settings.max_lines)
        self._answerer = answerer
        self._planner = planner = planner or FileOrder()
        self._runner = BatchRunner(
            self._store,
            self._answerer,
            planner,
            models,
            RunnerSettings(settings.max_running, limits, STORAGE_RETRY_S),
        )
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._expiry: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._expiry = asyncio.create_task(self._expire())
        for batch in await asyncio.to_thread(self._store.open_batches):
            self._begin(batch)

    async def close(self) -> None:
        tasks = tuple(self._runs.values())
        if self._expiry is not None:
            tasks += (self._expiry,)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._store.close)

    @property
    def is_running(self) -> bool:
        """True while a batch is open."""
        return bool(self._runs)

    def owner(self, batch_id: str) -> str | None:
        """Return the owner of a batch whose lines run now; None of another one."""
        return self._runner.owner(batch_id)

    def backlogs(self) -> dict[str, float]:
        """Return the tokens/s, by model, that end all running batches at their deadlines."""
        return self._runner.backlogs()

    async def _expire(self) -> None:
        """Delete expired files again and again, until cancelled."""
        while True:
            try:
                count = await asyncio.to_thread(self._files.expire)
            except StorageFailed as error:
                logger.warning("expired files are not deleted: %s", error)
            else:
                if count:
                    logger.info("%d files have expired and are deleted", count)
            await asyncio.sleep(EXPIRY_PERIOD_S)

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

    async def finish(
        self, upload_id: str, name: str, purpose: str, lifetime_s: int | None = None
    ) -> ApiObject:
        if purpose != PURPOSE:
            raise InvalidValue(f"purpose: expected {PURPOSE}, found {purpose!r:.40}", "purpose")
        file = await asyncio.to_thread(
            self._files.finish, upload_id, name, purpose, _now(), lifetime_s
        )
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
        _check_endpoint(asked.endpoint)
        seconds = window_s(asked.window)
        batch = await asyncio.to_thread(self._created, owner, asked, _now(), seconds)
        self._begin(batch)
        return self._object(batch)

    def _created(self, owner: str, asked: BatchRequest, now: int, seconds: int) -> Batch:
        """Create the batch; its file cannot go meanwhile."""
        with self._store.lock:
            file = self._input(owner, asked.input_file_id)
            # one byte: of its results, which nothing bounds
            self._quota.check(owner, 1)
            order = Order(
                owner,
                file.file_id,
                asked.endpoint,
                asked.window,
                now + seconds,
                asked.metadata,
                asked.results_lifetime_s,
            )
            return self._store.create(order, now)

    def _input(self, owner: str, file_id: str) -> StoredFile:
        """Return the owner's file. Raises NotFound, InvalidValue if it is of another purpose."""
        file = self._files.get(owner, file_id)
        if file.purpose != PURPOSE:
            raise InvalidValue(f"{file.file_id} was not uploaded for batches", "input_file_id")
        return file

    async def plan(self, owner: str, file_id: str, endpoint: str | None) -> ApiObject:
        if endpoint is not None:
            _check_endpoint(endpoint)
        file = await asyncio.to_thread(self._input, owner, file_id)
        job = JobFile(self._store.path_of(file.file_id), endpoint, self._limits)
        found = await self._planner.predict(job)
        return {"object": "batch.plan", "input_file_id": file_id, **found}

    async def changed(self, owner: str, seen: ApiObject, patience_s: float) -> ApiObject:
        until_s = time.monotonic() + patience_s
        while True:
            await asyncio.sleep(NEWS_PERIOD_S)
            batch = await self.batch(owner, seen["id"])
            if has_news(batch, seen) or time.monotonic() >= until_s:
                return batch

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
        stored = await asyncio.to_thread(stored_bytes, self._store)
        return Figures(by_status, num_lines, num_tokens, len(waits), waits.num_failures, stored)

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


def _check_endpoint(endpoint: str) -> None:
    if endpoint not in ENDPOINTS:
        expected = " or ".join(ENDPOINTS)
        message = f"endpoint: expected {expected}, found {endpoint!r:.60}"
        raise InvalidValue(message, "endpoint")


def _now() -> int:
    return int(time.time())
