"""Writes the results of a batch to the disk, all that wait at a time."""

import asyncio

from muxcluster.batch.service.storage import StorageWaits
from muxcluster.batch.store.store import BatchStore, Result
from muxcluster.core.errors import StorageFailed


class Recorder:
    """Records the results of one batch.

    retry_s: until a write that the disk refused is tried again, which `waits` notes; None: raise.
    """

    def __init__(
        self, store: BatchStore, batch_id: str, retry_s: float | None, waits: StorageWaits
    ) -> None:
        self._store = store
        self._waits = waits
        self._batch_id = batch_id
        self._retry_s = retry_s
        self._waiting: dict[int, Result] = {}
        self._turn = asyncio.Lock()

    async def keep(self, result: Result) -> None:
        """Return when the result is on the disk. Raises StorageFailed.

        Each write takes all results that wait: it takes as long for one as for many.
        """
        self._waiting[result.line] = result
        async with self._turn:
            if result.line not in self._waiting:
                return
            results = list(self._waiting.values())
            await self._record(results)
            for each in results:
                del self._waiting[each.line]

    async def _record(self, results: list[Result]) -> None:
        while True:
            try:
                await asyncio.to_thread(self._store.record, self._batch_id, results)
                self._waits.end(self._batch_id)
                return
            except StorageFailed as error:
                if self._retry_s is None:
                    raise
                self._waits.begin(self._batch_id, error)
                await asyncio.sleep(self._retry_s)
