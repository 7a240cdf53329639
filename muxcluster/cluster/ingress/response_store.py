"""The one actor that keeps responses, on the head node, and how ingresses reach it."""

import asyncio
import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from muxcluster.cluster.ray.actor_calls import Method, P, R, ask
from muxcluster.cluster.ray.application import raised_line
from muxcluster.cluster.ray.process_logs import log_as
from muxcluster.cluster.units.actors import RESPONSES, find_actor, make_on_head
from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.http.apis.responses.store import LocalResponseStore, StoredResponse
from muxcluster.http.settings import StoreSettings

TIMEOUT_S = 10.0  # an actor that hangs is never reported
FIRST_TIMEOUT_S = 60.0  # of the first call: its process starts for it
# After the actor was ended, none is made for so long: it is replaced by another ingress, or ends
# with the cluster, whose ingresses would leave one.
REMAKE_S = 5.0
POLL_S = 0.2  # meanwhile


class ResponseHost:
    """A `ResponseStore` behind Ray calls. Raises StorageFailed if its file cannot be opened."""

    def __init__(self, settings: StoreSettings) -> None:
        log_as("responses")
        self._settings = settings
        self._store = LocalResponseStore(settings)

    async def settings(self) -> StoreSettings:
        return self._settings

    async def add(self, stored: StoredResponse) -> None:
        await self._store.add(stored)

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        return await self._store.end(owner, response_id, response)

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        return await self._store.find(owner, response_id)

    async def is_open(self, owner: str, response_id: str) -> bool | None:
        return await self._store.is_open(owner, response_id)

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        return await self._store.turns(owner, response_id)

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._store.delete(owner, response_id)

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._store.close()


class ResponseStoreClient:
    """A `ResponseStore` whose answers come from the cluster's one actor."""

    def __init__(self, settings: StoreSettings) -> None:
        """settings: of the actor; one with others is replaced when it is found first."""
        self._settings = settings
        self._host: Any = None
        self._may_replace = True
        self._not_before_s = 0.0
        self._search: asyncio.Task[Any] | None = None  # that of all who ask

    async def add(self, stored: StoredResponse) -> None:
        await self._ask(ResponseHost.add, stored)

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        return await self._ask(ResponseHost.end, owner, response_id, response)

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        return await self._ask(ResponseHost.find, owner, response_id)

    async def is_open(self, owner: str, response_id: str) -> bool | None:
        return await self._ask(ResponseHost.is_open, owner, response_id)

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        return await self._ask(ResponseHost.turns, owner, response_id)

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._ask(ResponseHost.delete, owner, response_id)

    async def _ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the actor's answer. Raises what it raises; NotReady where no answer comes."""
        try:
            return await self._answer(method, *args, **kwargs)
        except RayTaskError as error:
            if isinstance(error.cause, MuxClusterError):
                raise error.cause from None
            raise _lost(str(error.cause)) from error
        except (RayError, TimeoutError, ValueError) as error:
            raise _lost(raised_line(str(error)) or type(error).__name__) from error

    async def _answer(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the actor, and if it was ended, the next one: asking twice changes nothing more."""
        host = await self._found()
        try:
            return await ask(host, TIMEOUT_S, method, *args, **kwargs)
        except ActorDiedError:
            if self._host is host:
                self._host = None
                self._not_before_s = time.monotonic() + REMAKE_S
        return await ask(await self._found(), TIMEOUT_S, method, *args, **kwargs)

    async def _found(self) -> Any:
        """Return the actor; make it on the head if it is missing."""
        if self._host is not None:
            return self._host
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._searched())
            # nobody may wait for it any more when it fails
            self._search.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.wait_for(asyncio.shield(self._search), FIRST_TIMEOUT_S)

    async def _searched(self) -> Any:
        host = await asyncio.to_thread(find_actor, RESPONSES)
        while host is None and time.monotonic() < self._not_before_s:
            await asyncio.sleep(POLL_S)
            host = await asyncio.to_thread(find_actor, RESPONSES)
        if host is not None and self._may_replace and await self._is_other(host):
            await asyncio.to_thread(ray.kill, host)
            host = None
        if host is None:
            host = await asyncio.to_thread(make_on_head, ResponseHost, RESPONSES, self._settings)
            await ask(host, FIRST_TIMEOUT_S, ResponseHost.settings)
        self._host, self._may_replace = host, False
        return host

    async def _is_other(self, host: Any) -> bool:
        return await ask(host, FIRST_TIMEOUT_S, ResponseHost.settings) != self._settings


def _lost(reason: str) -> NotReady:
    lines = reason.strip().splitlines() or ["no answer"]
    message = f"the store of responses does not answer: {lines[-1]}"
    return NotReady(message, retry_after_s=2, code="responses_lost")
