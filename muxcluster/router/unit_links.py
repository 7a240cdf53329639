"""The links of an ingress to all units, by the newest directory."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from muxcluster.core.directory import Directory
from muxcluster.core.errors import EngineFailure
from muxcluster.core.served import ServedModel
from muxcluster.router.unit_link import RESTART_LIMIT_S, Connect, LinkState, UnitLink

logger = logging.getLogger(__name__)

WATCH_PERIOD_S = 0.1
# how often the controller is asked for a newer directory while every unit is up
POLL_PERIOD_S = 0.5

# asks the controller for a directory newer than this version; None: none, or no answer
AskDirectory = Callable[[str | None], Awaitable[Directory | None]]


class UnitLinks:
    """Follows directories: connects to units, moves models among them, drops units.

    Empty before the first `apply`; keeps the last directory while no newer one comes.
    """

    def __init__(self, connect: Connect, restart_limit_s: float = RESTART_LIMIT_S) -> None:
        self._connect = connect
        self._restart_limit_s = restart_limit_s
        self._directory: Directory | None = None
        self._version: str | None = None
        self._links: dict[str, UnitLink] = {}
        self._open: frozenset[str] = frozenset()
        self._served: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def version(self) -> str | None:
        """Version of the current directory, None before the first."""
        return self._version

    def models(self) -> Sequence[ServedModel]:
        """Return every configured model; none before the first directory."""
        return () if self._directory is None else self._directory.models

    def links(self) -> Sequence[UnitLink]:
        """Return all links, those of draining and of starting units too."""
        return tuple(self._links.values())

    def of(self, model: str) -> Sequence[UnitLink]:
        """Return the links to units that take new requests of `model`."""
        routes = {} if self._directory is None else self._directory.routes
        return [self._links[unit] for unit in routes.get(model, ()) if unit in self._links]

    def routed(self) -> Sequence[UnitLink]:
        """Return the links to units that take new requests of any model."""
        routes = {} if self._directory is None else self._directory.routes
        unit_ids = {unit for units in routes.values() for unit in units}
        return [link for unit, link in self._links.items() if unit in unit_ids]

    def unplaced_s(self, model: str) -> float | None:
        """Return after how many seconds to ask again for a model without a place, else None."""
        return None if self._directory is None else self._directory.unplaced.get(model)

    def was_served(self, model: str) -> bool:
        """True once a unit of `model` has been up; before that the model loads."""
        if model not in self._served and any(link.was_heard() for link in self.of(model)):
            self._served.add(model)
        return model in self._served

    def are_warm(self) -> bool:
        """True if every model that has a place has been served."""
        names = {model.unit_model for model in self.models()}
        placed = [name for name in names if self.unplaced_s(name) is None]
        return self._directory is not None and all(map(self.was_served, placed))

    async def apply(self, directory: Directory) -> None:
        """Make `directory` the current one: connect, move and close links."""
        wanted = directory.unit_ids()
        self._directory, self._version = directory, directory.version
        self._served.intersection_update(model.name for model in directory.models)
        for unit_id in self._links.keys() - set(wanted):
            await self._links.pop(unit_id).close()
        for unit_id in wanted:
            await self._follow(unit_id, directory)
        self._wake()

    async def _follow(self, unit_id: str, directory: Directory) -> None:
        link = self._links.get(unit_id)
        drain_s = directory.draining.get(unit_id)
        if link is None or (link.is_closed and drain_s is None):
            link = UnitLink(unit_id, self._connect, self._restart_limit_s)
            self._links[unit_id] = link
        link.drain(drain_s)
        address = directory.units.get(unit_id)
        if address is not None:
            try:
                await link.move_to(address, directory.client_key)
            except (ValueError, EngineFailure) as error:
                logger.error("no line to %s: %s", unit_id, error)

    async def refresh(self) -> None:
        """Read reports, end drains that are over, and wake waiting requests when a unit is back."""
        for link in self._links.values():
            link.measure()
            if link.is_overdue() and not link.is_closed:
                logger.warning("%s has drained: %d requests move on", link.unit_id, link.num_open)
                await link.close()
        for model in self.models():
            self.was_served(model.unit_model)
        now_open = self._now_open()
        if now_open - self._open:
            self._wake()
        self._open = now_open

    def are_well(self) -> bool:
        """True if every unit that takes requests is up."""
        routed = self.routed()
        return bool(routed) and all(link.state() is LinkState.UP for link in routed)

    async def change(self) -> None:
        """Wait until a unit comes back or another directory is applied."""
        # One that is closed now and open at the next `refresh` has come back.
        self._open &= self._now_open()
        await self._changed.wait()

    def _now_open(self) -> frozenset[str]:
        return frozenset(unit for unit, link in self._links.items() if link.is_open())

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Close every connection; open requests fail. Idempotent."""
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._wake()


async def keep_in_step(links: UnitLinks, ask: AskDirectory) -> None:
    """Follow the controller's directories and watch the units, until cancelled."""
    await asyncio.gather(_watch(links), _poll(links, ask))


async def _watch(links: UnitLinks) -> None:
    while True:
        await links.refresh()
        await asyncio.sleep(WATCH_PERIOD_S)


async def _poll(links: UnitLinks, ask: AskDirectory) -> None:
    while True:
        directory = await ask(links.version)
        if directory is not None:
            await links.apply(directory)
        await asyncio.sleep(POLL_PERIOD_S if links.are_well() else WATCH_PERIOD_S)
