"""The controller as the processes of the edge see it: asked, and done without."""

import asyncio
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from muxcluster.channel.client import UnitClient
from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.errors import NotReady

ASK_TIMEOUT_S = 5.0
"""How long the controller may take; a hung one is never reported."""


class ControllerCalls:
    """controller: an actor's handle, or a Serve deployment's."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    async def ask(self, method: str, *args: Any, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """The answer of a method. Raises NotReady where none comes."""
        try:
            answer = getattr(self._controller, method).remote(*args)
            return await asyncio.wait_for(answer, timeout_s)
        except (TimeoutError, RayError, RayServeException) as error:
            message = "the controller does not answer"
            raise NotReady(message, retry_after_s=2, code="controller_lost") from error

    async def directory(self, known_version: str | None) -> Directory | None:
        """A newer directory; None too where the controller is gone: the next turn asks again."""
        try:
            directory: Directory | None = await self.ask("directory", known_version)
        except NotReady:
            return None
        return directory


async def connect(address: UnitAddress, keys: KeyPair | None) -> UnitClient:
    """A client of the unit at `address`."""
    client = UnitClient()
    await client.connect(address, keys)
    return client
