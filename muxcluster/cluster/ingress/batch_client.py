"""The batch service as ingresses see it: an actor on the head node, made at its first use."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from muxcluster.batch.service.interface import ApiObject, BatchService, Figures
from muxcluster.batch.store.database import database_path
from muxcluster.cluster.ingress.batch_host import make_host
from muxcluster.cluster.ray.actor_calls import Method, P, R
from muxcluster.cluster.ray.application import raised_line
from muxcluster.core.errors import MuxClusterError, NotReady
from muxcluster.http.settings import ApiSettings

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0  # an actor that hangs is never reported
PLAN_TIMEOUT_S = 900.0  # of the prediction of a file, which reads all of it


def _asked(method: Method[P, R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the client's method that asks the actor for `method`."""

    async def ask(client: "BatchServiceClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await client.ask(method, *args, **kwargs)

    return ask


class BatchServiceClient:
    """A `BatchService` whose answers come from the cluster's one actor."""

    def __init__(self, settings: ApiSettings, controller: Any) -> None:
        """settings: of the actor, should it have to be made."""
        self._settings = settings
        self._controller = controller
        self._host: Any = None

    async def start(self) -> None:
        """If this node keeps batches, start their actor, with these settings."""
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
        """Do nothing: the actor outlives its ingresses."""

    begin = _asked(BatchService.begin)
    add = _asked(BatchService.add)
    finish = _asked(BatchService.finish)
    abandon = _asked(BatchService.abandon)
    file = _asked(BatchService.file)
    files = _asked(BatchService.files)
    delete = _asked(BatchService.delete)
    read = _asked(BatchService.read)
    create = _asked(BatchService.create)
    batch = _asked(BatchService.batch)
    changed = _asked(BatchService.changed)
    batches = _asked(BatchService.batches)
    cancel = _asked(BatchService.cancel)

    async def figures(self) -> Figures | None:
        """As `BatchService.figures`; None where this process has not asked for batches yet."""
        return None if self._host is None else await self.ask(BatchService.figures)

    async def plan(self, owner: str, file_id: str, endpoint: str | None) -> ApiObject:
        """As `BatchService.plan`."""
        return await self._answer(PLAN_TIMEOUT_S, BatchService.plan, owner, file_id, endpoint)

    async def ask(self, method: Method[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the actor's answer to a method of `BatchService`.

        Raises what the batch service raises; NotReady where no answer comes.
        """
        return await self._answer(TIMEOUT_S, method, *args, **kwargs)

    async def _answer(
        self, timeout_s: float, method: Method[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        try:
            call = (await self._found()).ask.remote(method.__name__, *args, **kwargs)
            answer: R = await asyncio.wait_for(call, timeout_s)
            return answer
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
