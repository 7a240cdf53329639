"""The API keys that this process knows, and its calls to the cluster's counter."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from muxcluster.core.errors import MuxClusterError
from muxcluster.http.keys.meter import Meter
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.keys import TenantKey, digest_of
from muxcluster.tenants.messages import Ask, Grant, KeyService, Settlement

logger = logging.getLogger(__name__)

FOLLOW_PERIOD_S = 0.5  # how soon a change of the keys is known here
SETTLE_PERIOD_S = 0.2
SILENT_S = 5.0  # after a call that failed, requests run without asking for so long
MOST_IN_BATCH = 1000
MOST_WAITING = 200_000  # settlements; more are dropped, and counted

OnFailure = Callable[[str], None]


class KeyRing:
    """Finds keys by their secrets, and is the `Counter` of their requests.

    Keys of the settings `api_key`, `more_keys` and `admin_key` are known at once; those of
    `service` are asked for again and again, and kept while it does not answer.
    """

    def __init__(
        self, settings: ApiSettings, service: KeyService | None, on_failure: OnFailure
    ) -> None:
        """service: None: there are no other keys, and nothing is counted. on_failure: called where
        the counter does not do its work, with what failed: `reserve`, `settle` or `dropped`."""
        self._settings = settings
        self._service = service
        self._on_failure = on_failure
        self._caller = uuid.uuid4().hex
        self._own = {key.sha256: key for key in _own_keys(settings)}
        self._found: dict[str, TenantKey] = {}
        self._version = ""
        self._asked: list[tuple[Ask, asyncio.Future[Grant | None]]] = []
        self._asking: asyncio.Task[None] | None = None
        self._silent_until_s = 0.0
        self._settlements: list[Settlement] = []
        self._batch: Sequence[Settlement] = ()  # on its way
        self._serial = 0
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def are_asked_for(self) -> bool:
        """True if requests need a key."""
        return self._service is not None or any(not key.is_admin for key in self._own.values())

    @property
    def are_known(self) -> bool:
        """False until the service has told its keys."""
        return self._service is None or bool(self._version)

    @property
    def has_admin(self) -> bool:
        return any(key.is_admin for keys in (self._own, self._found) for key in keys.values())

    @property
    def keep_apart(self) -> bool:
        """True where only an admin may see what all clients do: there is one, or tenants."""
        return self._service is not None or self.has_admin

    def find(self, secret: bytes) -> TenantKey | None:
        """Return the key with this secret.

        It is looked up by its hash, so that how long it takes tells nothing about the secret.
        """
        digest = digest_of(secret)
        return self._own.get(digest) or self._found.get(digest)

    def name_of(self, owner: str) -> str:
        """Return the name of the key whose files and batches have this owner; if it is gone, the
        beginning of its hash."""
        keys = (*self._own.values(), *self._found.values())
        return next((key.name for key in keys if key.sha256.startswith(owner)), f"sha256:{owner}")

    def meter(self, key: TenantKey | None) -> Meter | None:
        """Return the meter of a new request; None where nothing is counted."""
        return None if key is None or self._service is None else Meter(key, self)

    def start(self) -> None:
        """Begin to follow the keys and to settle. Call it on the event loop. Idempotent."""
        if self._service is not None and not self._tasks:
            follow = asyncio.create_task(self._follow(self._service))
            settle = asyncio.create_task(self._settle_all(self._service))
            self._tasks = (follow, settle)

    async def close(self) -> None:
        """Stop, and settle what has ended. Idempotent."""
        tasks, self._tasks = self._tasks, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._service is not None and tasks:
            while (self._batch or self._settlements) and await self._settle(self._service):
                continue

    async def _follow(self, service: KeyService) -> None:
        is_heard = True
        while True:
            try:
                table = await service.table(self._caller, self._version)
            except MuxClusterError as error:
                if is_heard:
                    logger.warning("the API keys cannot be read again: %s", error)
                is_heard = False
            except Exception:
                logger.exception("the API keys cannot be read again")
            else:
                is_heard = True
                if table is not None:
                    self._found = {key.sha256: key for key in table.keys}
                    self._version = table.version
            await asyncio.sleep(FOLLOW_PERIOD_S)

    async def reserve(self, ask: Ask) -> Grant | None:
        """As `Counter.reserve`. Requests that ask while a call is on its way share the next one."""
        if time.monotonic() < self._silent_until_s:
            self._on_failure("reserve")
            return None
        answer: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
        self._asked.append((ask, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        try:
            return await answer
        except asyncio.CancelledError:
            # the answer may have come in the moment in which the client left
            if not answer.cancelled():
                self._release(ask, answer.result())
            raise

    async def _ask(self) -> None:
        assert self._service is not None, "only its keys have limits"
        asked: list[tuple[Ask, asyncio.Future[Grant | None]]] = []
        try:
            while self._asked:
                asked, self._asked = self._asked[:MOST_IN_BATCH], self._asked[MOST_IN_BATCH:]
                grants = await self._granted(self._service, [ask for ask, _ in asked])
                for (ask, answer), grant in zip(asked, grants, strict=True):
                    if answer.done():
                        self._release(ask, grant)
                    else:
                        answer.set_result(grant)
        finally:
            self._asking = None
            waiting, self._asked = self._asked, []
            for _, answer in (*asked, *waiting):
                if not answer.done():  # the loop ends, or a mistake of ours
                    answer.set_result(None)

    def _release(self, ask: Ask, grant: Grant | None) -> None:
        """Settle a request whose client left before the answer; without one it may be granted."""
        if grant is None or grant.is_granted:
            self.settle(Settlement(ask.call_id, ask.key, ask.model, num_requests=0))

    async def _granted(self, service: KeyService, asks: Sequence[Ask]) -> Sequence[Grant | None]:
        """Return the answers; None for each where there is none: the requests may run."""
        try:
            return await service.reserve(self._caller, asks)
        except MuxClusterError as error:
            logger.warning("%d requests run without limits: %s", len(asks), error)
            self._silent_until_s = time.monotonic() + SILENT_S
            for _ in asks:
                self._on_failure("reserve")
            return [None] * len(asks)

    def settle(self, settlement: Settlement) -> None:
        """As `Counter.settle`."""
        if len(self._settlements) >= MOST_WAITING:
            self._on_failure("dropped")
            return
        self._settlements.append(settlement)

    async def _settle_all(self, service: KeyService) -> None:
        while True:
            is_done = await self._settle(service)
            if not is_done or not self._settlements:
                await asyncio.sleep(SETTLE_PERIOD_S)

    async def _settle(self, service: KeyService) -> bool:
        """Send a batch of settlements, or the last one again; return whether it is written."""
        if not self._batch:
            if not self._settlements:
                return True
            self._batch = self._settlements[:MOST_IN_BATCH]
            self._settlements = self._settlements[MOST_IN_BATCH:]
            self._serial += 1
        try:
            await service.settle(self._caller, self._serial, self._batch)
        except MuxClusterError as error:
            logger.warning("the use of %d requests waits: %s", len(self._batch), error)
            self._on_failure("settle")
            return False
        except Exception:
            logger.exception("the use of %d requests waits", len(self._batch))
            self._on_failure("settle")
            return False
        self._batch = ()
        return True


def _own_keys(settings: ApiSettings) -> Iterator[TenantKey]:
    """Yield the keys that the settings name by their secrets; they have no limits."""
    if settings.api_key is not None:
        yield TenantKey("server.api_key", digest_of(settings.api_key.encode()))
    for i, secret in enumerate(settings.more_keys):
        yield TenantKey(f"server.more_keys[{i}]", digest_of(secret.encode()))
    if settings.admin_key is not None:
        name = "server.admin_key"
        yield TenantKey(name, digest_of(settings.admin_key.encode()), is_admin=True)
