"""A unit in this process behind asyncio: for ingress and Python callers, without sockets."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping

from muxcluster.channel.mailbox import Mailbox
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.partition_choice import settled
from muxcluster.engine.unit.unit import Unit

logger = logging.getLogger(__name__)


class LocalUnitClient:
    """Owns a `Unit` and serves one event loop, the one that calls `start`."""

    def __init__(self, spec: UnitSpec, *, executor: Executor | None = None) -> None:
        self._unit = Unit(settled(spec), self._on_output, executor=executor)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailboxes: dict[str, Mailbox] = {}

    @property
    def unit(self) -> Unit:
        return self._unit

    async def start(self) -> None:
        """Load the models. Raises as `Unit.start`."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._unit.start)

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """Yield deltas of the request up to the one with its end; a slow reader gets them merged.

        `aclose` before the end aborts the request. Raises as `Unit.submit`.
        """
        mailbox = Mailbox()
        self._unit.submit(request)
        self._mailboxes[request.request_id] = mailbox
        has_ended = False
        try:
            while not has_ended:
                delta = await mailbox.take()
                has_ended = delta.finished is not None or delta.rejected is not None
                yield delta
        finally:
            del self._mailboxes[request.request_id]
            if not has_ended:
                self._unit.abort(request.request_id)

    def stats(self) -> UnitStats | None:
        return self._unit.stats()

    async def close(self) -> None:
        """End open requests with `abort`, the unit's thread and its processes."""
        await asyncio.to_thread(self._unit.close)

    def _on_output(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Called on the unit's thread: one hop to the event loop per step."""
        assert self._loop is not None, "output before start"
        try:
            self._loop.call_soon_threadsafe(self._dispatch, deltas)
        except RuntimeError:
            logger.warning("the event loop is closed: %d readers are gone", len(deltas))

    def _dispatch(self, deltas: Mapping[str, TokenDelta]) -> None:
        for request_id, delta in deltas.items():
            mailbox = self._mailboxes.get(request_id)
            if mailbox is not None:
                mailbox.put(delta)
