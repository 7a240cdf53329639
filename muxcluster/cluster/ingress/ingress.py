"""The ingress replica: takes HTTP and Python calls and sends them to the units over zmq."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve

from muxcluster.cluster.control.controller import Controller
from muxcluster.cluster.ingress.adapter_client import AdapterClient
from muxcluster.cluster.ingress.batch_client import BatchServiceClient
from muxcluster.cluster.ingress.coalesce import coalesce
from muxcluster.cluster.ingress.controller_calls import ControllerCalls, connect
from muxcluster.cluster.ingress.key_client import KeyServiceClient
from muxcluster.cluster.ingress.plan_client import PlanClient
from muxcluster.cluster.ingress.response_store import ResponseStoreClient
from muxcluster.cluster.ray.application import APP
from muxcluster.cluster.ray.nodes import HEAD_RESOURCE
from muxcluster.cluster.ray.privacy import keep_replica_on_loopback
from muxcluster.cluster.ray.process_logs import log_as
from muxcluster.core.directory import Directory
from muxcluster.core.errors import EngineFailure, NotReady
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.metrics import request_log, spans
from muxcluster.http.routes.responses.background import Background
from muxcluster.http.server import audit
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.server.ports import Port, through
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.unit_links import UnitLinks, keep_in_step

logger = logging.getLogger(__name__)

INGRESS = "ingress"
VIEW_TIMEOUT_S = 15.0  # the controller asks the units first
# A Ray item costs 0.2-0.5 ms: a Python caller's stream gets at most 40 a second per choice
ITEM_PERIOD_S = 0.025
LEAVE_PERIOD_S = 1.0  # how often an ingress that leaves says how far it is
# One beside others listens when every model is up, but no later: a unit may be gone for long.
READY_S = 30.0
READY_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Replicas:
    """How Serve runs the ingresses of a deployment.

    version: replicas of the same version are left as they are; None replaces all.
    """

    num_nodes: int = 1  # with a replica each
    is_on_head: bool = False  # one replica there instead
    version: str | None = None
    is_beside: bool = False  # others listen at their addresses, which leave soon or stand in


class Ingress:
    """Serve's HTTP deployment and the target of Python handles.

    controller: its handle; asked for the directory and for status only, streams go on without it.
    listen: the address where this replica itself listens. None: HTTP comes through Serve's proxy.
    """

    def __init__(
        self,
        settings: ApiSettings,
        controller: Any,
        listen: HttpAddress | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        log_as("ingress")
        keep_replica_on_loopback()
        if settings.request_log is not None:
            request_log.write_to(Path(settings.request_log))
        if settings.audit_log is not None:
            audit.write_to(Path(settings.audit_log))
        spans.begin(settings.traces)
        self._settings = settings
        self._controller = ControllerCalls(controller)
        self._views = ControllerCalls(controller, VIEW_TIMEOUT_S)
        self._adapters = AdapterClient(controller)
        self._plans = PlanClient(controller)
        self._batch_service = (
            None if settings.batch is None else BatchServiceClient(settings, controller)
        )
        self._keys = None
        if settings.keys is not None:
            self._keys = KeyServiceClient(settings.keys, may_replace=True)
        self._responses = None
        if settings.store is not None:
            self._responses = ResponseStoreClient(settings.store)
        self._unit_links = UnitLinks(connect, settings.restart_limit_s)
        self._backend = ClusterBackend(self._unit_links, settings.restart_limit_s)
        self._service: CompletionService | None = None
        self._watch: asyncio.Task[None] | None = None
        self._listen = listen
        self._replicas = replicas or Replicas()
        self._listeners: list[Listener] = []
        self._name = uuid.uuid4().hex
        self._leaving: asyncio.Task[None] | None = None
        self._is_up = asyncio.Event()
        self._leaves = ""  # whose turn to leave it is, as far as this one has heard
        self._has_left = False
        self._background: Background | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application that Serve routes HTTP to; a hook, on its event loop."""
        self._watch = asyncio.create_task(keep_in_step(self._unit_links, self._directory))
        if self._replicas.is_beside:
            # the application reads the tokenizers of the models that are known by then
            await _wait_for(self._backend.ready)
        app = create_app(
            self._backend,
            self._settings,
            self._batch_service,
            cluster=self,
            key_service=self._keys,
            parts=AppParts(self._adapters, self._responses, self._plans),
        )
        app.add_api_route("/status", self.status, methods=["GET"])
        app.add_api_route("/timeline", self.timeline, methods=["GET"])
        self._service = app.state.service
        self._background = app.state.background
        if self._listen is not None:
            app.add_api_route("/-/healthz", _serve_healthz, include_in_schema=False)
            app.add_api_route("/-/routes", _serve_routes, include_in_schema=False)
            if self._replicas.is_beside:
                keys: KeyRing = app.state.keys
                keys.start()
                await _wait_for(lambda: keys.are_known)
            await self._start_listening(app, self._listen)
        self._is_up.set()
        return app

    async def _start_listening(self, app: FastAPI, address: HttpAddress) -> None:
        """Listen at `address`, and at the operators' one if there is one. Raises EngineFailure."""
        settings = self._settings
        limits = HeadLimits(
            timeout_s=settings.header_timeout_s, on_refused=app.state.on_refused_head
        )
        ports = {Port.ALL: address}
        if settings.admin is not None:
            ports = {Port.CLIENTS: address, Port.ADMIN: settings.admin}
        for port, where in ports.items():
            listener = Listener(
                where,
                limits,
                tls=settings.tls,
                connections=settings.connections,
                num_ports=len(ports),
            )
            self._listeners.append(listener)
            await listener.start(through(port, app), is_beside=self._replicas.is_beside)

    async def _directory(self, known_version: str | None) -> Directory | None:
        """As `ControllerCalls.directory`; begins to leave where the directory says so."""
        directory = await self._controller.directory(known_version)
        version = self._replicas.version
        if directory is not None:
            self._leaves = directory.leaving
            if version is not None and directory.leaving == version:
                self._leaving = self._leaving or asyncio.create_task(self._leave(version))
        return directory

    async def _leave(self, version: str) -> None:
        """Finish the answers that are open, and tell the controller when that is done."""
        await self._is_up.wait()  # one that is started again amid the change has no ports before
        logger.info("others take new connections; %d ports leave", len(self._listeners))
        leaving = asyncio.create_task(self._last_answers(self._settings.request_timeout_s))
        while True:
            self._has_left = leaving.done()
            with suppress(NotReady):
                told = (self._name, version, self._has_left)
                await self._controller.ask(Controller.note_leaving, *told)
            await asyncio.sleep(LEAVE_PERIOD_S)

    async def _last_answers(self, limit_s: float) -> None:
        """Wait for open answers, then for those without a connection, for `limit_s` s in all."""
        until_s = time.monotonic() + limit_s
        await asyncio.gather(*(each.leave(limit_s) for each in self._listeners))
        if self._background is not None:
            await self._background.ended(max(0.0, until_s - time.monotonic()))

    async def generate(
        self, prompt: str | Sequence[Any], **fields: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield new output as dicts, tokens coalesced, for Python handles with `stream=True`.

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
        """As `generate` without a stream: return one dict per choice."""
        choices: dict[int, dict[str, Any]] = {}
        async with aclosing(self.generate(prompt, **fields)) as items:
            async for item in items:
                seen = choices.setdefault(item["index"], {"text": "", "tokens": []})
                text, tokens = seen["text"] + item["text"], seen["tokens"] + item["tokens"]
                choices[item["index"]] = {**item, "text": text, "tokens": tokens}
        return [choices[index] for index in sorted(choices)]

    async def status(self) -> dict[str, Any]:
        """Return the controller's view and this ingress's links.

        Raises NotReady while the controller does not answer; streams go on without it.
        """
        state = await self._views.ask(Controller.status)
        return {**state, "ready": self._backend.ready(), "links": self.links()}

    def links(self) -> dict[str, str]:
        """Return the state of the link to each unit (a `LinkState`), by its id."""
        return {link.unit_id: link.state().value for link in self._unit_links.links()}

    async def timeline(self) -> dict[str, Any]:
        """Return the finished jobs of each unit, oldest first. Raises as `status`."""
        return await self._views.ask(Controller.timeline)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for the open ones; return how many had to be cut."""
        return await self._backend.drain(timeout_s)

    def check_health(self) -> None:
        """Raise EngineFailure if directories are no longer followed; a hook of Serve."""
        if self._watch is not None and self._watch.done():
            raise EngineFailure("the ingress no longer follows the directory")
        if self._has_left and self._leaves != self._replicas.version:
            # A change was rolled back: Serve starts another one, which listens.
            raise EngineFailure("the ingress has left its port, and is wanted again")

    async def __del__(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        for listener in reversed(self._listeners):
            await listener.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._unit_links.close()
        await asyncio.to_thread(spans.stop)


async def _wait_for(is_so: Callable[[], bool]) -> None:
    """Wait, for at most `READY_S` s, until an ingress can answer as well as those beside it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while not is_so():
                await asyncio.sleep(READY_POLL_S)


async def _serve_healthz() -> str:
    """Return the answer of Serve's proxy, for replicas that listen themselves."""
    return "success"


async def _serve_routes() -> dict[str, str]:
    """As `_serve_healthz`: application by route prefix."""
    return {"/": APP}


def call_fields(prompt: str | Sequence[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's request fields of a Python call; a list of dicts is a chat."""
    is_chat = not isinstance(prompt, str) and all(isinstance(part, Mapping) for part in prompt)
    named = {"messages" if is_chat else "prompt": prompt, **fields}
    model = serve.get_multiplexed_model_id()
    return {"model": model, **named} if model else named


def as_item(delta: ChoiceDelta) -> dict[str, Any]:
    """Return a delta as plain values."""
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
    replicas: Replicas | None = None,
) -> Any:
    """Return a bound Serve deployment of the ingress.

    controller: bound. listen: as for `Ingress`, the same port on every node.
    replicas: None for one.
    """
    replicas = replicas or Replicas()
    resources = {HEAD_RESOURCE: 0.001} if replicas.is_on_head else {}
    deployment = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=1 if replicas.is_on_head else replicas.num_nodes,
        max_replicas_per_node=1,
        # while others stand in all may be replaced at once, else one by one
        rolling_update_percentage=1.0 if replicas.is_beside else 0.2,
        # Our own queues are bounded (429); what Serve holds back would wait in the proxy instead.
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0, "resources": resources},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=10.0,
    )
    if replicas.version is not None:
        # Serve gives each `run` a version of its own, and replaces all replicas of another one.
        deployment = deployment.options(version=replicas.version, _internal=True)
    return deployment.bind(settings, controller, listen, replicas)
