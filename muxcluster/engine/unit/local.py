"""A unit in this process behind asyncio: for ingress and Python callers, without sockets."""

import asyncio
import logging
from collections.abc import Mapping

from muxcluster.channel.unit_stream import UnitStream, UnitStreams
from muxcluster.core.batch_part import PartMessage
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.unit.partition_choice import settle_partition
from muxcluster.engine.unit.unit import Unit

logger = logging.getLogger(__name__)


class LocalUnitClient:
    """Owns a `Unit` and serves one event loop, the one that calls `start`."""

    def __init__(self, spec: UnitSpec, *, executor: Executor | None = None) -> None:
        self._unit = Unit(settle_partition(spec), self._on_output, executor=executor)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams = UnitStreams(self._unit.submit, self._unit.abort)

    @property
    def unit(self) -> Unit:
        return self._unit

    async def start(self) -> None:
        """Load the models. Raises as `Unit.start`."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._unit.start)

    def generate(self, request: Request) -> UnitStream:
        """As `TokenSource.generate`; a slow reader gets deltas merged. Raises as `Unit.submit`."""
        return self._streams.generate(request)

    def feed(self, message: PartMessage) -> None:
        """As `Unit.feed`."""
        self._unit.feed(message)

    async def request_move(self, model: str, order: WeightOrder) -> None:
        """As `Unit.request_move`."""
        self._unit.request_move(model, order)

    def stats(self) -> UnitStats | None:
        return self._unit.stats()

    async def close(self) -> None:
        """End open requests with `abort`, the unit's thread and its processes."""
        await asyncio.to_thread(self._unit.close)

    def _on_output(self, deltas: Mapping[str, TokenDelta]) -> None:
        """Called on the unit's thread: one hop to the event loop per step."""
        assert self._loop is not None, "output before start"
        try:
            self._loop.call_soon_threadsafe(self._streams.put, deltas)
        except RuntimeError:
            logger.warning("the event loop is closed: %d readers are gone", len(deltas))
