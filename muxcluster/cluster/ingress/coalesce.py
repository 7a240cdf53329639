"""Gathers a call's deltas for a moment, so that one Ray item carries several tokens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from muxcluster.http.calls.choice import ChoiceDelta


async def coalesce(
    deltas: AsyncGenerator[ChoiceDelta, None], period_s: float
) -> AsyncGenerator[ChoiceDelta, None]:
    """The same output in fewer pieces: per choice at most one in `period_s` seconds.

    The first delta goes out at once. Raises what `deltas` raises, after what came before it.
    Closing this closes `deltas`.
    """
    waiting: dict[int, ChoiceDelta] = {}
    arrived = asyncio.Event()

    async def pump() -> None:
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    seen = waiting.get(delta.index)
                    waiting[delta.index] = delta if seen is None else joined(seen, delta)
                    arrived.set()
        finally:
            arrived.set()

    task = asyncio.create_task(pump())
    try:
        while waiting or not task.done():
            await arrived.wait()
            arrived.clear()
            ready = list(waiting.values())
            waiting.clear()
            for delta in ready:
                yield delta
            if not task.done():
                await asyncio.wait([task], timeout=period_s)
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def joined(first: ChoiceDelta, second: ChoiceDelta) -> ChoiceDelta:
    """Two deltas of one choice as one."""
    return replace(
        second,
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        pieces=(),
    )
