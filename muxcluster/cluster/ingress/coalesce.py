"""Collects a call's deltas for a moment, so that one Ray item carries several tokens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from muxcluster.http.calls.choice import ChoiceDelta


async def coalesce(
    deltas: AsyncGenerator[ChoiceDelta, None], period_s: float
) -> AsyncGenerator[ChoiceDelta, None]:
    """Yield the same output in fewer deltas: per choice at most one in `period_s` seconds.

    The first delta is not delayed. Raises what `deltas` raises, after the output before it. Closing
    this closes `deltas`.
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
    """Return two deltas of one choice as one."""
    return replace(
        second,
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
        pieces=(),
    )
