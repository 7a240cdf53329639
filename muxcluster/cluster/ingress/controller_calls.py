"""Calls of the controller by ingresses and the batch service, which also run without it."""

import asyncio
from contextlib import suppress
from typing import Any

from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import RayServeException

from muxcluster.channel.client import UnitClient
from muxcluster.cluster.control.controller import Controller
from muxcluster.cluster.ray.actor_calls import Method, P, R, ask
from muxcluster.cluster.units.actors import CONTROLLER, find_actor
from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.errors import NotReady

ASK_TIMEOUT_S = 5.0  # a controller that hangs is never reported


class ControllerCalls:
    """Asks the controller, for at most `timeout_s` seconds a call."""

    def __init__(self, controller: Any, timeout_s: float = ASK_TIMEOUT_S) -> None:
        """controller: an actor's handle, or a Serve deployment's."""
        self._controller = controller
        self._timeout_s = timeout_s
        self._search: asyncio.Task[None] | None = None

    async def ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the answer of a method of `Controller`. Raises NotReady where none comes.

        Where the controller is gone for good, later calls ask the one that has replaced it.
        """
        try:
            return await ask(self._controller, self._timeout_s, method, *args, **kwargs)
        except (TimeoutError, RayError, RayServeException) as error:
            if isinstance(error, ActorDiedError) and self._search is None:
                self._search = asyncio.create_task(self._find())
            message = "the controller does not answer"
            raise NotReady(message, retry_after_s=2, code="controller_lost") from error

    async def _find(self) -> None:
        # one at a time, and nobody waits: without a head Ray holds up the thread that asks
        with suppress(RayError, RuntimeError):
            found = await asyncio.to_thread(find_actor, CONTROLLER)
            if found is not None:
                self._controller = found
        self._search = None

    async def directory(self, known_version: str | None) -> Directory | None:
        """Return a newer directory; None if there is none or the controller does not answer."""
        try:
            return await self.ask(Controller.directory, known_version)
        except NotReady:
            return None


async def connect(address: UnitAddress, keys: KeyPair | None) -> UnitClient:
    client = UnitClient()
    await client.connect(address, keys)
    return client
