"""GET /health, /ready, /ping, /version, /load and /metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from muxcluster import __version__
from muxcluster.core.errors import NotReady, Unavailable
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.routes.generation import json_response
from muxcluster.router.backend import Backend


def status_routes(
    backend: Backend, texts: ModelTexts, metrics: Metrics, keys: KeyRing
) -> APIRouter:
    """Return the routes that operators and load balancers poll."""
    router = APIRouter()

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """Liveness: 503 if this server is stuck and should be replaced."""
        if not backend.healthy():
            raise Unavailable("the engine does not respond")
        return json_response({"status": "ok"})

    @router.post("/ping", response_model=None, include_in_schema=False)
    @router.get("/ping", response_model=None)
    async def ping() -> Response:
        return await health()

    @router.get("/ready", response_model=None)
    async def ready() -> Response:
        """Readiness: 503 while models load, the server drains or no unit is up."""
        if not (backend.healthy() and backend.ready() and len(texts) and keys.are_known):
            raise NotReady("models are loading, or the server is draining", retry_after_s=2)
        return json_response({"status": "ready"})

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
