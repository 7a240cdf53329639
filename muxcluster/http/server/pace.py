"""The minimum speed at which a client has to send a request's body."""

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive

from muxcluster.core.errors import RequestTimeout


@dataclass(frozen=True, slots=True)
class Pace:
    """At least `bytes_per_s` on average over each `window_s` seconds."""

    bytes_per_s: int
    window_s: float


class PacedBody:
    """An ASGI `receive` that raises RequestTimeout if the body comes slower than `pace`.

    Only time spent waiting for the client counts.
    """

    def __init__(self, receive: Receive, pace: Pace) -> None:
        self._receive = receive
        self._pace = pace
        self._is_whole = False
        self._begin_window()

    def _begin_window(self) -> None:
        self._left_s = self._pace.window_s
        self._num_missing = self._pace.bytes_per_s * self._pace.window_s

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            try:
                async with asyncio.timeout(max(0.0, self._left_s)):
                    message = await self._receive()
            except TimeoutError:
                self._end_window()
                continue
            self._left_s -= loop.time() - started_s
            self._num_missing -= len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            return message

    def _end_window(self) -> None:
        if self._num_missing > 0:
            least = self._pace.bytes_per_s
            raise RequestTimeout(f"the body came slower than {least} bytes a second")
        self._begin_window()
