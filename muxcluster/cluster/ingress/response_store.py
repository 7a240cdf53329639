"""The one actor that keeps responses, on the head node, and how ingresses reach it."""

import asyncio
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from muxcluster.cluster.ray.actor_calls import Method, P, R, ask
from muxcluster.cluster.ray.process_logs import log_as
from muxcluster.cluster.units.actors import RESPONSES, find_actor, make_on_head
from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.http.apis.responses.store import LocalResponseStore, StoredResponse
from muxcluster.http.settings import StoreSettings

TIMEOUT_S = 10.0  # an actor that hangs is never reported
FIRST_TIMEOUT_S = 60.0  # of the first call: its process starts for it


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
        self._finding = asyncio.Lock()

    async def add(self, stored: StoredResponse) -> None:
        await self._ask(ResponseHost.add, stored)

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        return await self._ask(ResponseHost.end, owner, response_id, response)

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        return await self._ask(ResponseHost.find, owner, response_id)

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        return await self._ask(ResponseHost.turns, owner, response_id)

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._ask(ResponseHost.delete, owner, response_id)

    async def _ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the actor's answer. Raises what it raises; NotReady where no answer comes."""
        try:
            async with self._finding:
                if self._host is None:
                    self._host = await self._found()
            return await ask(self._host, TIMEOUT_S, method, *args, **kwargs)
        except RayTaskError as error:
            if isinstance(error.cause, MuxClusterError):
                raise error.cause from None
            raise _lost() from error
        except (RayError, TimeoutError, ValueError) as error:
            if isinstance(error, ActorDiedError):
                self._host = None
            raise _lost() from error

    async def _found(self) -> Any:
        """Return the actor; make it on the head if it is missing."""
        may_replace, self._may_replace = self._may_replace, False
        host = await asyncio.to_thread(find_actor, RESPONSES)
        if host is not None:
            given = await ask(host, FIRST_TIMEOUT_S, ResponseHost.settings)
            if given == self._settings or not may_replace:
                return host
            await asyncio.to_thread(ray.kill, host)
        host = await asyncio.to_thread(make_on_head, ResponseHost, RESPONSES, self._settings)
        await ask(host, FIRST_TIMEOUT_S, ResponseHost.settings)
        return host


def _lost() -> NotReady:
    message = "the store of responses does not answer"
    return NotReady(message, retry_after_s=2, code="responses_lost")
