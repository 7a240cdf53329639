"""The ingress replica: HTTP and Python calls in, zmq to the units, one hop."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve

from muxcluster.cluster.embedded import APP
from muxcluster.cluster.ingress.batch_client import BatchServiceClient
from muxcluster.cluster.ingress.coalesce import coalesce
from muxcluster.cluster.ingress.controller_calls import ControllerCalls, connect
from muxcluster.cluster.ray.nodes import HEAD_RESOURCE
from muxcluster.cluster.ray.privacy import keep_replica_on_loopback
from muxcluster.core.errors import EngineFailure, NotReady
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.app import create_app
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.metrics import request_log
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.unit_links import UnitLinks, keep_in_step

INGRESS = "ingress"
VIEW_TIMEOUT_S = 15.0
"""How long the controller may take where it asks the units first."""
ITEM_PERIOD_S = 0.025
"""A Ray item costs 0.2-0.5 ms: a Python caller's stream gets at most 40 a second per choice."""


class Ingress:
    """Serve's HTTP deployment and the target of Python handles.

    controller: Serve handle of the controller, asked for the directory and for status only: streams
    go on without it.
    listen: where this replica itself listens. None: HTTP comes through Serve's proxy.
    """

    def __init__(
        self, settings: ApiSettings, controller: Any, listen: HttpAddress | None = None
    ) -> None:
        keep_replica_on_loopback()
        if settings.request_log is not None:
            request_log.write_to(Path(settings.request_log))
        self._settings = settings
        self._controller = ControllerCalls(controller)
        self._batch_service = (
            None if settings.batch is None else BatchServiceClient(settings, controller)
        )
        self._unit_links = UnitLinks(connect, settings.restart_limit_s)
        self._backend = ClusterBackend(self._unit_links, settings.restart_limit_s)
        self._service: CompletionService | None = None
        self._watch: asyncio.Task[None] | None = None
        self._listen = listen
        self._listener: Listener | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook, on the replica's event loop: the application it routes HTTP to."""
        app = create_app(self._backend, self._settings, self._batch_service)
        app.add_api_route("/status", self.status, methods=["GET"])
        app.add_api_route("/timeline", self.timeline, methods=["GET"])
        self._service = app.state.service
        self._watch = asyncio.create_task(
            keep_in_step(self._unit_links, self._controller.directory)
        )
        if self._listen is not None:
            app.add_api_route("/-/healthz", _serve_healthz, include_in_schema=False)
            app.add_api_route("/-/routes", _serve_routes, include_in_schema=False)
            limits = HeadLimits(
                timeout_s=self._settings.header_timeout_s, on_refused=app.state.on_refused_head
            )
            self._listener = Listener(self._listen, limits)
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
        """The controller's view, with what only the ingress knows.

        Raises NotReady while the controller does not answer; the data path goes on without it.
        """
        state: dict[str, Any] = await self._controller.ask("status", timeout_s=VIEW_TIMEOUT_S)
        links = {link.unit_id: link.state().value for link in self._unit_links.links()}
        return {**state, "ready": self._backend.ready(), "links": links}

    async def timeline(self) -> dict[str, Any]:
        """Finished jobs of each unit, oldest first. Raises as `status`."""
        jobs: dict[str, Any] = await self._controller.ask("timeline", timeout_s=VIEW_TIMEOUT_S)
        return jobs

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, wait for the open ones; how many are still open after that."""
        return await self._backend.drain(timeout_s)

    def check_health(self) -> None:
        """Serve's hook. Raises EngineFailure where directories are no longer followed."""
        if self._watch is not None and self._watch.done():
            raise EngineFailure("the ingress no longer follows the directory")

    async def __del__(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._unit_links.close()


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
    settings: ApiSettings,
    controller: Any,
    listen: HttpAddress | None = None,
    num_nodes: int = 1,
    version: str | None = None,
    *,
    is_on_head: bool = False,
) -> Any:
    """A bound Serve deployment of the ingress, a replica on each of `num_nodes` nodes, or on the
    head alone.

    `controller` is bound; `listen` is `Ingress`'s, the same port on every node. version: replicas
    of an equal one are left as they are; None replaces all.
    """
    resources = {HEAD_RESOURCE: 0.001} if is_on_head else {}
    deployment = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=1 if is_on_head else num_nodes,
        max_replicas_per_node=1,
        # Our own queues are bounded (429); what Serve holds back would wait in the proxy instead.
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0, "resources": resources},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10.0,
    )
    if version is not None:
        # Serve gives each `run` a version of its own, and replaces all replicas of another one.
        deployment = deployment.options(version=version, _internal=True)
    return deployment.bind(settings, controller, listen)
