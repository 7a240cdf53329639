"""Output of one request that waits for its reader on the event loop."""

import asyncio

from muxcluster.core.events import TokenDelta, merge


class Mailbox:
    """Holds at most one delta: output that a slow reader has not taken is merged, not queued."""

    def __init__(self) -> None:
        self._waiting: TokenDelta | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, delta: TokenDelta) -> None:
        """Add output. Call it on the reader's event loop."""
        self._waiting = delta if self._waiting is None else merge(self._waiting, delta)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """End the output: the reader gets what waits, then `error`."""
        self._error = error
        self._arrived.set()

    async def take(self) -> TokenDelta:
        """Return the output since the last call as one delta. Raises the error given to `fail`."""
        await self._arrived.wait()
        delta, self._waiting = self._waiting, None
        if delta is None:
            assert self._error is not None, "an event without a delta"
            raise self._error
        if self._error is None:
            self._arrived.clear()
        return delta
