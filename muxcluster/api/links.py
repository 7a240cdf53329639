"""The ingress's lines to the units: one client each, renewed when a unit was restarted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from muxcluster.api.backend import close
from muxcluster.core.errors import NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import UnitStats

logger = logging.getLogger(__name__)

SILENT_S = 3.0
"""A unit that has not reported for this long may live at another endpoint by now."""
WATCH_PERIOD_S = 1.0
WARM_UP_PERIOD_S = 0.1


class UnitConnection(Protocol):
    """The channel's client of one unit, connected."""

    def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """As `Backend.generate`."""
        ...

    def stats(self) -> UnitStats | None:
        """The latest report, None before the first."""
        ...

    def stats_age_s(self) -> float:
        """Seconds since the latest report; infinite before the first."""
        ...

    async def close(self) -> None:
        """Give up the socket."""
        ...


Connect = Callable[[str], Awaitable[UnitConnection]]


class UnitLink:
    """One unit under a name that stays, whatever its endpoint is now."""

    def __init__(self, unit_id: str, connect: Connect) -> None:
        self.unit_id = unit_id
        self._connect = connect
        self._client: UnitConnection | None = None
        self._endpoint: str | None = None

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """As `Backend.generate`. Raises NotReady before the unit's first report."""
        if self._client is None or self._client.stats() is None:
            raise NotReady(f"{self.unit_id} is loading its models")
        deltas = self._client.generate(request)
        try:
            async for delta in deltas:
                yield delta
        finally:
            await close(deltas)

    def stats(self) -> UnitStats | None:
        """The latest report, None before the first."""
        return None if self._client is None else self._client.stats()

    def age_s(self) -> float:
        """Seconds since the latest report; infinite before the first."""
        return float("inf") if self._client is None else self._client.stats_age_s()

    async def move_to(self, endpoint: str) -> None:
        """Connect anew where `endpoint` is another one; the old client's requests fail."""
        if endpoint == self._endpoint:
            return
        old, self._client = self._client, await self._connect(endpoint)
        self._endpoint = endpoint
        if old is not None:
            logger.warning("%s moved to %s", self.unit_id, endpoint)
            await old.close()

    async def close(self) -> None:
        """Give up the connection."""
        if self._client is not None:
            await self._client.close()


async def keep_connected(
    links: Sequence[UnitLink], ask_endpoints: Callable[[], Awaitable[Mapping[str, str]]]
) -> None:
    """Until cancelled: ask for the endpoints while any unit is silent, and follow them."""
    while True:
        silent = [link for link in links if link.age_s() > SILENT_S]
        if silent:
            endpoints = await ask_endpoints()
            for link in silent:
                if link.unit_id in endpoints:
                    await link.move_to(endpoints[link.unit_id])
        is_warm = all(link.stats() is not None for link in links)
        await asyncio.sleep(WATCH_PERIOD_S if is_warm else WARM_UP_PERIOD_S)
