"""The batch service as ingresses see it: an actor on the head node, made at its first use."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from muxcluster.batch.service.interface import ApiObject, BatchRequest, Figures
from muxcluster.batch.store.database import database_path
from muxcluster.batch.store.files import FilePage
from muxcluster.cluster.embedded import raised_line
from muxcluster.cluster.ingress.batch_host import make_host
from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.http.settings import ApiSettings

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""How long the actor may take; a hung one is never reported."""


class BatchServiceClient:
    """As `BatchService`. settings: of the actor, should it have to be made."""

    def __init__(self, settings: ApiSettings, controller: Any) -> None:
        self._settings = settings
        self._controller = controller
        self._host: Any = None

    async def start(self) -> None:
        """Where this node keeps batches, have them go on, with these settings."""
        batch = self._settings.batch
        if batch is None or not database_path(Path(batch.directory)).exists():
            return
        try:
            settings = await asyncio.wait_for((await self._found()).settings.remote(), TIMEOUT_S)
            if settings != self._settings:
                await asyncio.to_thread(ray.kill, self._host)
                self._host = None
                await (await self._found()).settings.remote()
        except (RayError, TimeoutError, NotReady) as error:
            # whoever asks for a batch is told
            logger.error("batches do not go on: %s", error)

    async def close(self) -> None:
        """The actor outlives its ingresses."""

    async def begin(self, owner: str) -> str:
        upload_id: str = await self._ask("begin", owner)
        return upload_id

    async def add(self, upload_id: str, data: bytes) -> None:
        await self._ask("add", upload_id, data)

    async def finish(self, upload_id: str, name: str, purpose: str) -> ApiObject:
        card: ApiObject = await self._ask("finish", upload_id, name, purpose)
        return card

    async def abandon(self, upload_id: str) -> None:
        await self._ask("abandon", upload_id)

    async def file(self, owner: str, file_id: str) -> ApiObject:
        card: ApiObject = await self._ask("file", owner, file_id)
        return card

    async def files(self, owner: str, page: FilePage) -> list[ApiObject]:
        cards: list[ApiObject] = await self._ask("files", owner, page)
        return cards

    async def delete(self, owner: str, file_id: str) -> ApiObject:
        card: ApiObject = await self._ask("delete", owner, file_id)
        return card

    async def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes:
        data: bytes = await self._ask("read", owner, file_id, offset, count)
        return data

    async def create(self, owner: str, asked: BatchRequest) -> ApiObject:
        card: ApiObject = await self._ask("create", owner, asked)
        return card

    async def batch(self, owner: str, batch_id: str) -> ApiObject:
        card: ApiObject = await self._ask("batch", owner, batch_id)
        return card

    async def batches(self, owner: str, count: int, after: str | None) -> list[ApiObject]:
        cards: list[ApiObject] = await self._ask("batches", owner, count, after)
        return cards

    async def cancel(self, owner: str, batch_id: str) -> ApiObject:
        card: ApiObject = await self._ask("cancel", owner, batch_id)
        return card

    async def figures(self) -> Figures | None:
        if self._host is None:
            return None
        figures: Figures = await self._ask("figures")
        return figures

    async def _ask(self, method: str, *args: Any) -> Any:
        """The actor's answer. Raises what the batch service raises; NotReady where none comes."""
        try:
            host = await self._found()
            return await asyncio.wait_for(host.ask.remote(method, *args), TIMEOUT_S)
        except RayTaskError as error:
            if isinstance(error.cause, MuxClusterError):
                raise error.cause from None
            raise
        except (RayError, TimeoutError) as error:
            if isinstance(error, ActorDiedError):
                self._host = None
            reason = raised_line(str(error)) or "it is restarting"
            message = f"the batch service does not answer: {reason}"
            raise NotReady(message, retry_after_s=2, code="batches_lost") from error

    async def _found(self) -> Any:
        if self._host is None:
            self._host = await asyncio.to_thread(make_host, self._settings, self._controller)
        return self._host
