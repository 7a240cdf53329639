"""Sends event streams and notices that the client has left or does not read."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`; the body of `request` has been read.

    Raises ClientDisconnect, after cancelling `work`, if the client leaves first.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _end(task, leaving)


class SlowReader(Exception):
    """The client has stopped reading; its connection must be cut."""


class EventStream(Response):
    """Server-sent events: `first`, then `rest`, which is closed in any case.

    An error of `rest` is raised without completing the body: the server then cuts the connection.
    So it does if the client has not read everything by `cut_at_s` (time.monotonic()).
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], cut_at_s: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._cut_at_s = cut_at_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            left_s = max(0.0, self._cut_at_s - time.monotonic())
            tasks = {sending, leaving}
            await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif not leaving.done():
                raise SlowReader("the client does not read")
        except OSError:
            return  # the server says that the client has gone
        finally:
            await _end(sending, leaving)
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for data in self._rest:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
