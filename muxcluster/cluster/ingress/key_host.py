"""The one actor that counts what the keys of tenants use, and reads them again when they change."""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muxcluster.cluster.ray.process_logs import log_as
from muxcluster.cluster.units.actors import KEYS, make_on_head
from muxcluster.config.keysfile import read_keys
from muxcluster.config.load import Config
from muxcluster.config.schema import KeySection
from muxcluster.core.errors import ConfigError
from muxcluster.core.request import ServiceClass
from muxcluster.tenants.book import KeyBook
from muxcluster.tenants.keys import KeyLimits, KeySettings, KeyTable, TenantKey
from muxcluster.tenants.limiter import Instant
from muxcluster.tenants.messages import Ask, Grant, Settlement, UsageQuery, UsageRow

logger = logging.getLogger(__name__)

READ_PERIOD_S = 0.5  # how soon a change of the file is seen


def present() -> Instant:
    return Instant(time.monotonic(), time.time())


def key_settings_of(config: Config) -> KeySettings | None:
    """Return the settings of the tenants' keys; None if the configuration has none.

    Raises ConfigError if their file is wrong.
    """
    server, file = config.server, config.keys_file
    if server.keys is None and file is None:
        return None
    if file is not None:
        read_keys(file)
    keys = tenant_keys(server.keys or ())
    return KeySettings(str(config.usage_directory), keys, None if file is None else str(file))


def tenant_keys(sections: Sequence[KeySection]) -> tuple[TenantKey, ...]:
    """Return the keys that are enabled."""
    return tuple(
        TenantKey(
            section.name,
            section.sha256,
            None if section.models is None else tuple(section.models),
            tuple(ServiceClass(each) for each in section.classes),
            section.admin,
            KeyLimits(
                section.requests_per_minute,
                section.tokens_per_minute,
                section.tokens_per_day,
                section.concurrent_requests,
            ),
        )
        for section in sections
        if section.enabled
    )


class KeyHost:
    """A `KeyService` whose keys are those of `settings` or of its file. Make it on a running event
    loop. Raises StorageFailed if the ledger cannot be opened.
    """

    def __init__(self, settings: KeySettings) -> None:
        log_as("keys")
        self._settings = settings
        self._book = KeyBook(Path(settings.directory), present)
        self._seen: tuple[int, ...] | None = None  # of the file that was read last
        self._reading: asyncio.Task[None] | None = None
        if settings.file is None:
            self._book.replace_keys(settings.keys)
        else:
            self._read(Path(settings.file))
            self._reading = asyncio.create_task(self._read_again(Path(settings.file)))

    async def settings(self) -> KeySettings:
        return self._settings

    async def _read_again(self, file: Path) -> None:
        while True:
            await asyncio.sleep(READ_PERIOD_S)
            self._read(file)

    def _read(self, file: Path) -> None:
        """Make the keys of a file that has changed valid; a wrong file leaves those before."""
        state = _state_of(file)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._book.replace_keys(tenant_keys(read_keys(file)))
        except ConfigError as error:
            logger.error("the keys stay as they were: %s", error)

    async def table(self, caller: str, known_version: str) -> KeyTable | None:
        return await self._book.table(caller, known_version)

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        return await self._book.reserve(caller, asks)

    async def settle(self, caller: str, serial: int, settlements: Sequence[Settlement]) -> None:
        await self._book.settle(caller, serial, settlements)

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        return await self._book.usage(query)

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._book.close()


def _state_of(file: Path) -> tuple[int, ...]:
    """Return what changes when a file does; nothing if it is not there."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def make_key_host(settings: KeySettings) -> Any:
    """Return the handle of the cluster's one host; make it on the head if it is missing."""
    return make_on_head(KeyHost, KEYS, settings)
