"""The HTTP application over a `Backend`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from muxcluster import __version__
from muxcluster.batch.service.interface import BatchService
from muxcluster.core.errors import MuxClusterError
from muxcluster.http.apis.responses.store import ResponseStore
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.errors import HttpError, http_error, status_error
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.live.conditions import Conditions
from muxcluster.http.live.units import UnitHistory
from muxcluster.http.live.view import Cluster, LiveParts, LiveView
from muxcluster.http.metrics.batches import BatchMetrics
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.metrics.units import UnitMetrics
from muxcluster.http.routes.batches import batch_routes
from muxcluster.http.routes.documents import DocumentedApp
from muxcluster.http.routes.embeddings import embedding_routes
from muxcluster.http.routes.files import file_routes
from muxcluster.http.routes.generation import generation_routes
from muxcluster.http.routes.live import live_routes
from muxcluster.http.routes.messages import message_routes
from muxcluster.http.routes.models import model_routes
from muxcluster.http.routes.operators.adapters import AdapterControl, adapter_routes
from muxcluster.http.routes.operators.plan import PlanControl, plan_routes
from muxcluster.http.routes.operators.weights import weight_routes
from muxcluster.http.routes.responses.background import Background
from muxcluster.http.routes.responses.routes import response_routes
from muxcluster.http.routes.status import status_routes
from muxcluster.http.routes.usage import usage_routes
from muxcluster.http.server.middleware import Edge, error_response
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import Backend
from muxcluster.tenants.messages import KeyService
from muxcluster.text.validation.body import field_path

CLIENT_CLOSED = 499
MODELS_PERIOD_S = 0.25  # how soon after its directory a new model's tokenizer is read


@dataclass(frozen=True, slots=True)
class AppParts:
    """What some routes need, and refuse by name where it is absent."""

    adapters: AdapterControl | None = None  # loads and unloads them
    responses: ResponseStore | None = None  # keeps those of `/v1/responses`
    plans: PlanControl | None = None  # tells the plan, and makes others


_NO_PARTS = AppParts()


def create_app(
    backend: Backend,
    settings: ApiSettings | None = None,
    batch_service: BatchService | None = None,
    cluster: Cluster | None = None,
    key_service: KeyService | None = None,
    parts: AppParts = _NO_PARTS,
) -> FastAPI:
    """Return the OpenAI application over `backend`.

    `app.state.service` is its CompletionService, `app.state.keys` its KeyRing,
    `app.state.background` makes responses in the background;
    `app.state.on_refused_head` counts requests that a listener refuses before they get here.
    batch_service: started and closed with the application; None: no routes of files and batches.
    cluster: of units in other processes, for the live view.
    key_service: knows the keys of tenants and counts their use; None: only the keys of `settings`
    are valid, and nothing is counted. parts: what else the routes need.

    Raises LoadError naming the file if a model's tokenizer or template cannot be read.
    """
    settings = settings or ApiSettings()
    texts = ModelTexts.load(backend.models())
    metrics = Metrics()
    metrics.declare(text.served for text in texts)
    history = UnitHistory(backend.stats, dict if cluster is None else cluster.links)
    units = UnitMetrics(metrics.registry, history.stats)
    batches = BatchMetrics(metrics.registry)
    conditions = Conditions(metrics.registry, history.seen, backend.models, metrics.recent.refused)
    seen = LiveParts(history, metrics.recent, batches, conditions)
    view = LiveView(backend, seen, cluster, has_plan=parts.plans is not None)
    service = CompletionService(backend, texts, metrics, settings)
    keys = KeyRing(settings, key_service, metrics.key_failed)
    background = Background(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        keys.start()
        polls = [
            asyncio.create_task(_observe(units, conditions, settings.stats_period_s)),
            asyncio.create_task(_follow(backend, texts, metrics)),
        ]
        if batch_service is not None:
            polls.append(asyncio.create_task(batch_service.start()))
            polls.append(asyncio.create_task(batches.follow(batch_service)))
        yield
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await background.close()
        await keys.close()
        if batch_service is not None:
            await batch_service.close()

    app = DocumentedApp(title="muxcluster", version=__version__, lifespan=lifespan)
    app.state.service, app.state.keys, app.state.background = service, keys, background
    app.state.on_refused_head = metrics.refused_head
    lenient = settings.lenient
    thin = (generation_routes, embedding_routes, message_routes)
    routers = [
        *(routes(service, lenient=lenient) for routes in thin),
        response_routes(service, parts.responses, background, lenient=lenient),
        model_routes(texts, settings),
        status_routes(backend, texts, metrics, keys, conditions),
        weight_routes(backend, settings),
        adapter_routes(parts.adapters, texts, settings),
        live_routes(view, metrics.recent),
        plan_routes(parts.plans, lenient=lenient),
    ]
    if key_service is not None:
        routers.append(usage_routes(key_service))
    if batch_service is not None:
        routers += [file_routes(batch_service), batch_routes(batch_service)]
    for router in routers:
        app.include_router(router)
    app.add_middleware(Edge, settings=settings, metrics=metrics, keys=keys)
    _add_error_answers(app)
    return app


async def _observe(units: UnitMetrics, conditions: Conditions, period_s: float) -> None:
    """Read the units' reports more often than they come, so that every job is counted."""
    while True:
        units.observe()
        conditions.observe()
        await asyncio.sleep(period_s)


async def _follow(backend: Backend, texts: ModelTexts, metrics: Metrics) -> None:
    """Keep texts and metrics in step with the served models."""
    while True:
        metrics.declare(await texts.follow(backend.models()))
        await asyncio.sleep(MODELS_PERIOD_S)


def _add_error_answers(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(http_error(error))

    async def on_surprise(request: Request, error: Exception) -> Response:
        # answered outside the Edge, which would have added the id
        answer = http_error(error)
        answer.headers["X-Request-Id"] = request.state.request_id
        return error_response(answer)

    async def on_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = status_error(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return error_response(answer)

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = field_path(tuple(first["loc"][1:])) or None
        return error_response(
            HttpError(400, "invalid_request_error", "invalid_value", str(first["msg"]), param)
        )

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    app.add_exception_handler(MuxClusterError, on_error)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_surprise)
