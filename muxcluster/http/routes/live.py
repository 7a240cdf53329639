"""GET /v1/cluster/live and /v1/cluster/requests/ID, and the page /dashboard with its files."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter
from starlette.responses import Response

from muxcluster.core.errors import NotFound
from muxcluster.http.live.view import LiveView
from muxcluster.http.metrics.recent import EndedRequest, RecentRequests
from muxcluster.http.routes.generation import json_response
from muxcluster.http.server.middleware import PAGE, PAGE_FILES

# The page asks for nothing but its own files and this server's routes.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_FOLDER = files("muxcluster.http.live") / "page"


def live_routes(view: LiveView, recent: RecentRequests) -> APIRouter:
    """Return the routes; `Edge` asks for a key on those below /v1/cluster."""
    router = APIRouter()

    @router.get("/v1/cluster/live", response_model=None)
    async def live() -> Response:
        """Return what units, models, batches and recent requests do now."""
        return Response(
            await view.encoded(),
            media_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    @router.get("/v1/cluster/requests/{request_id:path}", response_model=None)
    async def one_request(request_id: str) -> Response:
        """Return where the time of a request went, by its X-Request-Id or its answer's id."""
        found = recent.find(request_id)
        if not found:
            message = f"no request {request_id[:80]!r} among the last that ended here"
            raise NotFound(message, "request_id")
        return json_response({"id": request_id, "choices": [_told(each) for each in found]})

    router.add_api_route(PAGE, _page("index.html"), methods=["GET"], response_model=None)
    for name in PAGE_FILES:
        router.add_api_route(
            f"{PAGE}/{name}",
            _page(name),
            methods=["GET"],
            response_model=None,
            include_in_schema=False,
        )
    return router


def _told(ended: EndedRequest) -> dict[str, object]:
    return {
        **ended.line,
        "arrived_s": ended.arrived_unix_s,
        "ttft_s": ended.ttft_s,
        "tpot_s": ended.tpot_s,
        "targets": None if ended.slo is None else asdict(ended.slo),
        "within_targets": ended.is_within_targets(),
    }


def _page(name: str) -> Callable[[], Awaitable[Response]]:
    """Return the endpoint of a file of the page, which is read once."""
    content = (_FOLDER / name).read_bytes()
    kind = _KINDS[PurePath(name).suffix]

    async def page() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return page
