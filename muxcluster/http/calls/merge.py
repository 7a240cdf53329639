"""Merges several streams into one, in order of arrival; closing it closes them all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from muxcluster.router.token_source import Stream

T = TypeVar("T")


def merge(sources: Sequence[AsyncGenerator[T, None]]) -> Stream[T]:
    """Return a stream of the items of all `sources`; the first error of any ends it.

    Sources wait for a slow reader. If there are several, each runs in a task of its own.
    """
    return sources[0] if len(sources) == 1 else _Merged(sources)


class _Merged(Generic[T]):
    """A `Stream` of the items that a task for each source puts into one queue."""

    def __init__(self, sources: Sequence[AsyncGenerator[T, None]]) -> None:
        self._sources = sources
        # an Exception in the queue is a source's error, None a source's end
        self._queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(len(sources))
        self._tasks: list[asyncio.Task[None]] | None = None
        self._num_open = len(sources)

    def __aiter__(self) -> "_Merged[T]":
        return self

    async def __anext__(self) -> T:
        if self._tasks is None:
            self._tasks = [asyncio.create_task(self._pump(source)) for source in self._sources]
        while self._num_open:
            entry = await self._queue.get()
            if entry is None:
                self._num_open -= 1
            elif isinstance(entry, Exception):
                await self.aclose()
                raise entry
            else:
                return entry[0]
        raise StopAsyncIteration

    async def _pump(self, source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await self._queue.put((item,))
            await self._queue.put(None)
        except Exception as error:  # noqa: BLE001 - handed to the reader, who raises it
            await self._queue.put(error)

    async def aclose(self) -> None:
        """End all sources. Idempotent."""
        self._num_open = 0
        tasks = self._tasks = self._tasks or []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
