"""The ingress's lines to the units: one client each, renewed when a unit was restarted."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from muxcluster.api.backend import close
from muxcluster.core.errors import NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import UnitState, UnitStats

logger = logging.getLogger(__name__)

SILENT_S = 3.0
"""A unit that has not reported for this long may live at another endpoint by now."""
STALLED_S = 10.0
"""A unit reports twice a second; after this long without a report it is stuck."""
WATCH_PERIOD_S = 0.1
RESTART_LIMIT_S = 120.0
"""How long a lost unit may take to come back before requests stop waiting for it."""


class LinkState(StrEnum):
    """A unit as the ingress sees it. Only `up` is ready; `stalled` and `failed` are unhealthy."""

    LOADING = "loading"
    UP = "up"
    SILENT = "silent"
    STALLED = "stalled"
    RECOVERING = "recovering"
    FAILED = "failed"


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

    def is_broken(self) -> bool:
        """The unit's process closed the connection and has not been heard since."""
        ...

    async def close(self) -> None:
        """Give up the socket."""
        ...


Connect = Callable[[str], Awaitable[UnitConnection]]


class UnitLink:
    """One unit under a name that stays, whatever its endpoint is now."""

    def __init__(
        self, unit_id: str, connect: Connect, restart_limit_s: float = RESTART_LIMIT_S
    ) -> None:
        self.unit_id = unit_id
        self.num_open = 0
        """Requests of ours that the unit works on."""
        self._connect = connect
        self._restart_limit_s = restart_limit_s
        self._client: UnitConnection | None = None
        self._endpoint: str | None = None
        self._was_up = False
        self._up_at_s = math.inf
        self._lost_at_s = -math.inf
        self._is_closed = False
        self._changed = asyncio.Event()

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        """As `Backend.generate`. Raises NotReady before the unit's first report."""
        client = self._client
        if client is None or client.stats() is None:
            raise NotReady(f"{self.unit_id} is loading its models")
        deltas = client.generate(request)
        self.num_open += 1
        try:
            async for delta in deltas:
                yield delta
        finally:
            self.num_open -= 1
            await close(deltas)

    def stats(self) -> UnitStats | None:
        """The latest report, None before the first."""
        return None if self._client is None else self._client.stats()

    def age_s(self) -> float:
        """Seconds since the latest report; infinite before the first."""
        return math.inf if self._client is None else self._client.stats_age_s()

    def state(self) -> LinkState:
        """What the unit is doing now, as far as reports and the connection tell."""
        client, now = self._client, time.monotonic()
        report = None if client is None else client.stats()
        if report is not None and report.state is UnitState.FAILED:
            return LinkState.FAILED
        is_up = report is not None and report.state is UnitState.READY
        if client is None or client.is_broken() or not is_up:
            if not self._was_up:
                return LinkState.LOADING
            is_late = now - self._up_at_s > self._restart_limit_s
            return LinkState.FAILED if is_late else LinkState.RECOVERING
        age_s = client.stats_age_s()
        if age_s > SILENT_S:
            return LinkState.STALLED if age_s > STALLED_S else LinkState.SILENT
        self._was_up, self._up_at_s = True, now
        return LinkState.UP

    def was_heard(self) -> bool:
        """True once the unit has been up; until then it loads its models."""
        return self._was_up or self.state() is LinkState.UP

    def is_open(self) -> bool:
        """True where a request may be sent: the unit has reported since its last loss."""
        client = self._client
        if self._is_closed or client is None or client.is_broken():
            return False
        report = client.stats()
        if report is None or report.state is UnitState.FAILED:
            return False
        age_s = client.stats_age_s()
        return age_s <= STALLED_S and time.monotonic() - age_s > self._lost_at_s

    def lose(self) -> None:
        """A request found the unit gone: none is sent before it reports again."""
        self._lost_at_s = time.monotonic()

    def refresh(self) -> None:
        """Wakes those who wait where the unit takes requests again."""
        self.state()
        if self.is_open() or self._is_closed:
            self._changed.set()
            self._changed = asyncio.Event()

    async def change(self) -> None:
        """Waits until the unit may take requests again, or the link is closed."""
        if not (self.is_open() or self._is_closed):
            await self._changed.wait()

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
        """Give up the connection: open requests fail. Idempotent."""
        self._is_closed = True
        self.refresh()
        if self._client is not None:
            await self._client.close()


async def keep_connected(
    links: Sequence[UnitLink], ask_endpoints: Callable[[], Awaitable[Mapping[str, str]]]
) -> None:
    """Until cancelled: ask for the endpoints while any unit is lost or silent, and follow them."""
    await asyncio.gather(_refresh(links), _follow(links, ask_endpoints))


async def _refresh(links: Sequence[UnitLink]) -> None:
    while True:
        for link in links:
            link.refresh()
        await asyncio.sleep(WATCH_PERIOD_S)


async def _follow(
    links: Sequence[UnitLink], ask_endpoints: Callable[[], Awaitable[Mapping[str, str]]]
) -> None:
    while True:
        missing = [link for link in links if not link.is_open() or link.age_s() > SILENT_S]
        if missing:
            endpoints = await ask_endpoints()
            for link in missing:
                if link.unit_id in endpoints:
                    await link.move_to(endpoints[link.unit_id])
        await asyncio.sleep(WATCH_PERIOD_S)
