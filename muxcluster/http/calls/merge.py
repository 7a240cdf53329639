"""Several streams as one, in order of arrival; closing the one closes them all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all `sources`; the first error of any ends the merged stream and the others.

    Sources wait for a slow reader.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    # an Exception in the queue is a source's error, None a source's end
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(len(sources))
    tasks = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        num_open = len(sources)
        while num_open:
            entry = await queue.get()
            if entry is None:
                num_open -= 1
            elif isinstance(entry, Exception):
                raise entry
            else:
                yield entry[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    source: AsyncGenerator[T, None], queue: "asyncio.Queue[tuple[T] | Exception | None]"
) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((item,))
        await queue.put(None)
    except Exception as error:  # noqa: BLE001 - handed to the reader, who raises it
        await queue.put(error)
