"""The ingress's link to one unit: a client, renewed when the unit restarts elsewhere."""

import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from enum import StrEnum
from typing import Protocol

from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartMessage, PartOver
from muxcluster.core.directory import KeyPair, UnitAddress
from muxcluster.core.errors import NotReady
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import ModelStats, UnitState, UnitStats
from muxcluster.router.backend import UnitSource
from muxcluster.router.routing import PrefixMemory
from muxcluster.router.token_source import Stream
from muxcluster.router.unit_load import LoadMeter

logger = logging.getLogger(__name__)

SILENT_S = 5.0  # without a report for so long: no new requests
# stuck; a node out of reach shows earlier, as its connection breaks
STALLED_S = 10.0
# a lost unit may take so long to come back before requests stop waiting for it
RESTART_LIMIT_S = 120.0


class LinkState(StrEnum):
    """A unit as the ingress sees it. `stalled` and `failed` are unhealthy."""

    LOADING = "loading"
    UP = "up"
    SILENT = "silent"  # connected, without reports for SILENT_S
    STALLED = "stalled"  # for STALLED_S
    UNREACHABLE = "unreachable"  # the connection broke (process, node or network), may come back
    RECOVERING = "recovering"  # as the unit reports
    FAILED = "failed"


class UnitConnection(UnitSource, Protocol):
    """The channel's client of one unit, connected."""

    def feed(self, message: PartMessage) -> None:
        """Tell the unit about a part of a batch, before the requests of its lines."""
        ...

    def stats_age_s(self) -> float:
        """Return the seconds since the latest report; infinite before the first."""
        ...

    def is_broken(self) -> bool:
        """True if the unit closed the connection and nothing has been heard since."""
        ...

    async def close(self) -> None: ...


Connect = Callable[[UnitAddress, KeyPair | None], Awaitable[UnitConnection]]


class UnitLink:
    """One unit under a name that stays while its endpoint changes."""

    def __init__(
        self, unit_id: str, connect: Connect, restart_limit_s: float = RESTART_LIMIT_S
    ) -> None:
        self.unit_id = unit_id
        self.num_open = 0  # requests of ours that the unit works on
        self.load = LoadMeter()
        self.prefixes = PrefixMemory()
        self._connect = connect
        self._restart_limit_s = restart_limit_s
        self._client: UnitConnection | None = None
        self._address: UnitAddress | None = None
        self._drain_until_s = math.inf
        self._was_up = False
        self._up_at_s = math.inf
        self._lost_at_s = -math.inf
        self._is_closed = False
        # By id of the batch's part, its id at the unit; only those sent since the last loss
        self._parts: dict[str, str] = {}

    @asynccontextmanager
    async def opened(self, request: Request) -> AsyncGenerator[Stream[TokenDelta], None]:
        """Open the stream of `request` for the block and count it in `num_open`.

        Raises NotReady before the unit's first report.
        """
        client = self._client
        if client is None or client.stats() is None:
            raise NotReady(f"{self.unit_id} is loading its models")
        self.num_open += 1
        try:
            async with aclosing(client.generate(request)) as deltas:
                yield deltas
        finally:
            self.num_open -= 1

    async def request_move(self, model: str, order: WeightOrder) -> None:
        """As `UnitSource.request_move`. Raises NotReady before the unit's first report, too."""
        client = self._client
        if client is None or client.stats() is None:
            raise NotReady(f"{self.unit_id} is loading its models")
        await client.request_move(model, order)

    def model_stats(self, model: str) -> ModelStats | None:
        """Return what the unit last reported of a model; None before, and where it has none."""
        report = self.stats()
        found = () if report is None else report.models
        return next((each for each in found if each.name == model), None)

    def holds(self, model: str) -> bool:
        """True if the unit wakes the model for no request."""
        found = self.model_stats(model)
        return found is not None and found.order == WeightOrder.HOLD

    def part_id_at_unit(self, part_id: str) -> str | None:
        """Return the id under which the unit feeds a part; None if it does not have it."""
        return self._parts.get(part_id)

    def feed(self, part_id: str, part: BatchPart) -> None:
        """Send a part, under the id that `part` has at the unit."""
        if self._client is not None:
            self._client.feed(part)
            self._parts[part_id] = part.part_id

    def end_line(self, place: LinePlace) -> None:
        """Tell the unit that a line is over, if it has its part."""
        found = self._parts.get(place.part_id)
        if found is not None and self._client is not None:
            self._client.feed(LineOver(LinePlace(found, place.number)))

    def end_part(self, part_id: str) -> None:
        """Tell the unit to forget a part, if it has it."""
        found = self._parts.pop(part_id, None)
        if found is not None and self._client is not None:
            self._client.feed(PartOver(found))

    def stats(self) -> UnitStats | None:
        """Return the latest report, None before the first."""
        return None if self._client is None else self._client.stats()

    def age_s(self) -> float:
        """Return the seconds since the latest report; infinite before the first."""
        return math.inf if self._client is None else self._client.stats_age_s()

    def state(self) -> LinkState:
        """Return the unit's state by its reports and its connection."""
        client, now = self._client, time.monotonic()
        report = None if client is None else client.stats()
        if report is not None and report.state is UnitState.FAILED:
            return LinkState.FAILED
        is_up = report is not None and report.state is UnitState.READY
        if client is None or client.is_broken() or not is_up:
            if not self._was_up:
                return LinkState.LOADING
            if now - self._up_at_s > self._restart_limit_s:
                return LinkState.FAILED
            is_there = client is not None and not client.is_broken()
            return LinkState.RECOVERING if is_there else LinkState.UNREACHABLE
        age_s = client.stats_age_s()
        if age_s > SILENT_S:
            return LinkState.STALLED if age_s > STALLED_S else LinkState.SILENT
        self._was_up, self._up_at_s = True, now
        return LinkState.UP

    def was_heard(self) -> bool:
        """True once the unit has been up; before that it loads its models."""
        return self._was_up or self.state() is LinkState.UP

    def is_open(self) -> bool:
        """True if a request may be sent: the unit has reported since its last loss."""
        client = self._client
        if self._is_closed or client is None or client.is_broken():
            return False
        report = client.stats()
        if report is None or report.state is UnitState.FAILED:
            return False
        age_s = client.stats_age_s()
        return age_s <= SILENT_S and time.monotonic() - age_s > self._lost_at_s

    def measure(self) -> None:
        """Learn from the latest report. Call it more often than units report."""
        report = self.stats()
        if report is not None:
            self.load.hear(report, time.monotonic() - self.age_s())

    def lose(self) -> None:
        """Send no request before the unit reports again: one found it gone."""
        self.prefixes = PrefixMemory()
        self._parts.clear()
        self._lost_at_s = time.monotonic()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def drain(self, limit_s: float | None) -> None:
        """Let requests under way stay for `limit_s` seconds from the first such call.

        None: the unit does not drain, or no longer.
        """
        if limit_s is None:
            self._drain_until_s = math.inf
        elif self._drain_until_s == math.inf:
            self._drain_until_s = time.monotonic() + limit_s

    def is_overdue(self) -> bool:
        """True if the requests left on a draining unit must move on."""
        return time.monotonic() >= self._drain_until_s

    async def move_to(self, address: UnitAddress, keys: KeyPair | None = None) -> None:
        """Connect to `address` if it is another one; requests of the old client fail."""
        if address == self._address or self._is_closed:
            return
        old, self._client = self._client, await self._connect(address, keys)
        self._address = address
        self.load, self.prefixes = LoadMeter(), PrefixMemory()
        self._parts.clear()
        if old is not None:
            logger.warning("%s moved to %s", self.unit_id, address.endpoint)
            await old.close()

    async def close(self) -> None:
        """Close the connection; open requests fail. Idempotent."""
        self._is_closed = True
        if self._client is not None:
            await self._client.close()
