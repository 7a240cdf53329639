"""The ingress replica: HTTP and Python calls in, zmq to the units, one hop."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from muxcluster.api import request_log
from muxcluster.api.app import create_app
from muxcluster.api.choice import ChoiceDelta
from muxcluster.api.cluster_backend import ClusterBackend
from muxcluster.api.coalesce import coalesce
from muxcluster.api.links import UnitLink, keep_connected
from muxcluster.api.listener import Listener
from muxcluster.api.service import CompletionService
from muxcluster.api.settings import ApiSettings
from muxcluster.channel.client import UnitClient
from muxcluster.cluster.embedded import APP, HttpAddress
from muxcluster.core.errors import NotReady
from muxcluster.core.served import ServedModel

INGRESS = "ingress"
ITEM_PERIOD_S = 0.025
"""A Ray item costs 0.2-0.5 ms: a Python caller's stream gets at most 40 a second per choice."""


@dataclass(frozen=True, slots=True)
class Routes:
    """What an ingress serves: the models, and the units that each model's requests may go to."""

    models: tuple[ServedModel, ...]
    units_of: Mapping[str, tuple[str, ...]]


class Ingress:
    """Serve's HTTP deployment and the target of Python handles.

    controller: Serve handle of the controller, asked for endpoints and status only.
    listen: where this replica itself listens. None: HTTP comes through Serve's proxy.
    """

    def __init__(
        self,
        routes: Routes,
        settings: ApiSettings,
        controller: Any,
        listen: HttpAddress | None = None,
    ) -> None:
        if settings.request_log is not None:
            request_log.write_to(Path(settings.request_log))
        self._settings = settings
        self._controller = controller
        unit_ids = dict.fromkeys(chain.from_iterable(routes.units_of.values()))
        limit_s = settings.restart_limit_s
        self._links = [UnitLink(unit_id, _connect, limit_s) for unit_id in unit_ids]
        self._backend = ClusterBackend(routes.models, routes.units_of, self._links, limit_s)
        self._service: CompletionService | None = None
        self._watch: asyncio.Task[None] | None = None
        self._listener = None if listen is None else Listener(listen)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook, on the replica's event loop: the application it routes HTTP to."""
        app = create_app(self._backend, self._settings)
        app.add_api_route("/status", self.status, methods=["GET"])
        app.add_api_route("/timeline", self.timeline, methods=["GET"])
        self._service = app.state.service
        self._watch = asyncio.create_task(keep_connected(self._links, self._endpoints))
        if self._listener is not None:
            app.add_api_route("/-/healthz", _serve_healthz, include_in_schema=False)
            app.add_api_route("/-/routes", _serve_routes, include_in_schema=False)
            await self._listener.start(app)
        return app

    async def generate(
        self, prompt: str | Sequence[Any], **fields: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """For Python handles with `stream=True`: new output as dicts, tokens coalesced.

        prompt: text, token ids, or chat messages (dicts). fields: OpenAI's, `model` by default
        the handle's multiplexed_model_id. Raises as `CompletionService.generate`.
        """
        if self._service is None:
            raise NotReady("the ingress is starting")
        deltas = self._service.generate(call_fields(prompt, fields))
        async with aclosing(coalesce(deltas, ITEM_PERIOD_S)) as items:
            async for delta in items:
                yield as_item(delta)

    async def complete(self, prompt: str | Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
        """As `generate` without a stream: one dict per choice."""
        choices: dict[int, dict[str, Any]] = {}
        async with aclosing(self.generate(prompt, **fields)) as items:
            async for item in items:
                seen = choices.setdefault(item["index"], {"text": "", "tokens": []})
                text, tokens = seen["text"] + item["text"], seen["tokens"] + item["tokens"]
                choices[item["index"]] = {**item, "text": text, "tokens": tokens}
        return [choices[index] for index in sorted(choices)]

    async def status(self) -> dict[str, Any]:
        """The controller's view, with what only the ingress knows."""
        state: dict[str, Any] = await self._controller.status.remote()
        return {**state, "ready": self._backend.ready()}

    async def timeline(self) -> dict[str, Any]:
        """Finished jobs of each unit, oldest first."""
        jobs: dict[str, Any] = await self._controller.timeline.remote()
        return jobs

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, wait for the open ones; how many are still open after that."""
        return await self._backend.drain(timeout_s)

    async def _endpoints(self) -> Mapping[str, str]:
        try:
            endpoints: dict[str, str] = await self._controller.endpoints.remote()
        except (RayError, RayServeException):
            return {}  # it restarts; the next turn asks again
        return endpoints

    async def __del__(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._watch is not None:
            self._watch.cancel()
        for link in self._links:
            await link.close()


async def _connect(endpoint: str) -> UnitClient:
    client = UnitClient()
    await client.connect(endpoint)
    return client


async def _serve_healthz() -> str:
    """What Serve's proxy answers where it is the one that listens."""
    return "success"


async def _serve_routes() -> dict[str, str]:
    """As `_serve_healthz`: route prefix -> application."""
    return {"/": APP}


def call_fields(prompt: str | Sequence[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's request fields of a Python call: a list of dicts is a chat."""
    is_chat = not isinstance(prompt, str) and all(isinstance(part, Mapping) for part in prompt)
    named = {"messages" if is_chat else "prompt": prompt, **fields}
    model = serve.get_multiplexed_model_id()
    return {"model": model, **named} if model else named


def as_item(delta: ChoiceDelta) -> dict[str, Any]:
    """A delta as plain values."""
    return {
        "index": delta.index,
        "text": delta.text,
        "tokens": list(delta.tokens),
        "logprobs": [
            None if placed.values is None else placed.values.logprob for placed in delta.logprobs
        ],
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "num_output_tokens": delta.num_output_tokens,
    }


def ingress_deployment(
    routes: Routes, settings: ApiSettings, controller: Any, listen: HttpAddress | None = None
) -> Any:
    """A bound Serve deployment of the ingress; `controller` is bound, `listen` as `Ingress`'s."""
    deployment = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=1,
        # Our own queues are bounded (429); what Serve holds back would wait in the proxy instead.
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10.0,
    )
    return deployment.bind(routes, settings, controller, listen)
