"""The counter of the tenants' keys as ingresses see it: an actor on the head node."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from muxcluster.cluster.ingress.key_host import KeyHost, make_key_host
from muxcluster.cluster.ray.actor_calls import Method, P, R, ask
from muxcluster.cluster.ray.application import raised_line
from muxcluster.cluster.units.actors import KEYS, find_actor
from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.tenants.keys import KeySettings, KeyTable
from muxcluster.tenants.messages import Ask, Grant, Settlement, UsageQuery, UsageRow

TIMEOUT_S = 5.0  # an actor that hangs is never reported
RESERVE_TIMEOUT_S = 1.0  # meanwhile a request has a place in its model's queue
# of the first call: its process starts for it
FIRST_TIMEOUT_S = 60.0
# After the actor was ended, none is made for so long: ingresses that end, too, would leave one.
REMAKE_S = 10.0


class KeyServiceClient:
    """A `KeyService` whose answers come from the cluster's one actor."""

    def __init__(self, settings: KeySettings, *, may_replace: bool) -> None:
        """settings: of the actor, should it have to be made. may_replace: an actor with others is
        replaced when this client finds it for the first time, and minutes begin again."""
        self._settings = settings
        self._may_replace = may_replace
        self._host: Any = None
        self._not_before_s = 0.0

    async def table(self, caller: str, known_version: str) -> KeyTable | None:
        if self._host is None:
            await self._find()
        return await self._ask(TIMEOUT_S, KeyHost.table, caller, known_version)

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        return await self._ask(RESERVE_TIMEOUT_S, KeyHost.reserve, caller, asks)

    async def settle(self, caller: str, serial: int, settlements: Sequence[Settlement]) -> None:
        await self._ask(TIMEOUT_S, KeyHost.settle, caller, serial, settlements)

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        return await self._ask(TIMEOUT_S, KeyHost.usage, query)

    async def _ask(
        self, timeout_s: float, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return the actor's answer. Raises what it raises; NotReady where no answer comes."""
        if self._host is None:
            raise _lost("it is not found yet")
        try:
            return await ask(self._host, timeout_s, method, *args, **kwargs)
        except RayTaskError as error:
            if isinstance(error.cause, MuxClusterError):
                raise error.cause from None
            raise _lost(str(error.cause)) from error
        except (RayError, TimeoutError) as error:
            if isinstance(error, ActorDiedError):
                self._host = None
                self._not_before_s = time.monotonic() + REMAKE_S
            raise _lost(raised_line(str(error)) or type(error).__name__) from error

    async def _find(self) -> None:
        """Find the actor, or make it. Raises NotReady."""
        try:
            host = await asyncio.to_thread(find_actor, KEYS)
            if host is not None and self._may_replace and await self._is_other(host):
                await asyncio.to_thread(ray.kill, host)
                host = None
            if host is None:
                host = await self._made()
        except (RayError, TimeoutError, ValueError) as error:
            raise _lost(raised_line(str(error)) or str(error)) from error
        self._host, self._may_replace = host, False

    async def _is_other(self, host: Any) -> bool:
        """True for an actor with other settings: Ray would restart it with these, too."""
        return await ask(host, FIRST_TIMEOUT_S, KeyHost.settings) != self._settings

    async def _made(self) -> Any:
        if time.monotonic() < self._not_before_s:
            raise _lost("it has ended")
        host = await asyncio.to_thread(make_key_host, self._settings)
        await ask(host, FIRST_TIMEOUT_S, KeyHost.settings)
        return host


def _lost(reason: str) -> NotReady:
    lines = reason.strip().splitlines() or ["no answer"]
    message = f"the counter of the keys' limits does not answer: {lines[-1]}"
    return NotReady(message, retry_after_s=2, code="keys_lost")
