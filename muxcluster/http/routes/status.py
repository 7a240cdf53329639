"""GET /health, /ready, /ping, /version, /load and /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from muxcluster import __version__
from muxcluster.core.errors import NotReady
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.live.conditions import Condition, Conditions
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.routes.generation import json_response
from muxcluster.router.backend import Backend


def status_routes(
    backend: Backend, texts: ModelTexts, metrics: Metrics, keys: KeyRing, conditions: Conditions
) -> APIRouter:
    """Return the routes that operators and load balancers poll."""
    router = APIRouter()

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """Liveness: 503 if this server is stuck and should be replaced."""
        if not backend.healthy():
            raise NotReady("no unit responds", code="stalled")
        return json_response({"status": "ok"})

    @router.post("/ping", response_model=None, include_in_schema=False)
    @router.get("/ping", response_model=None)
    async def ping() -> Response:
        return await health()

    @router.get("/ready", response_model=None)
    async def ready() -> Response:
        """Readiness: 503 while models load, the server drains or no unit is up.

        `conditions` tells an open route no more than the kinds of trouble.
        """
        _check_ready(backend, texts, keys)
        names = {finding.condition for finding in conditions.now()}
        shown = [each.value for each in Condition if each in names]
        return json_response({"status": "ready", "conditions": shown})

    @router.get("/version", response_model=None)
    async def version() -> Response:
        return json_response({"version": __version__})

    @router.get("/load", response_model=None)
    async def load() -> Response:
        return json_response({"server_load": metrics.num_live})

    @router.get("/metrics", response_model=None)
    async def scrape() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _check_ready(backend: Backend, texts: ModelTexts, keys: KeyRing) -> None:
    """Raise NotReady with the reason as its code."""
    if backend.draining():
        raise NotReady("the server is shutting down", 2, "server_shutting_down")
    if not backend.healthy():
        raise NotReady("no unit responds", 2, "stalled")
    if not keys.are_known:
        raise NotReady("the API keys are not read yet", 2, "keys_unknown")
    if not (backend.ready() and len(texts)):
        raise NotReady("models are loading, or no unit is up", 2)
