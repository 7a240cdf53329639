"""The middleware of every HTTP request: id, metrics, API key, limits of head and body."""

import hashlib
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muxcluster.core.errors import ContentTooLarge, NotReady, Overloaded
from muxcluster.http.errors import HttpError, http_error, status_error
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.server.audit import AuditLog
from muxcluster.http.server.connection import HeadLimits, HeadTooLarge, head_too_large
from muxcluster.http.server.open_calls import OpenCall, OpenCalls
from muxcluster.http.server.pace import Pace, PacedBody
from muxcluster.http.server.ports import Port, port_of
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.keys import TenantKey

PAGE = "/dashboard"
# of muxcluster/http/live/page, below PAGE
_MODULES = ["asking", "document", "models", "page", "plan", "reports", "state", "units", "values"]
PAGE_FILES = (*(f"{module}.js" for module in _MODULES), "page.css", "icon.svg")
PAGE_ROUTES = frozenset({PAGE, *(f"{PAGE}/{name}" for name in PAGE_FILES)})
HEALTH_ROUTES = frozenset({"/health", "/ping", "/ready"})
OPEN_ROUTES = HEALTH_ROUTES | PAGE_ROUTES
_ADAPTER_ROUTES = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_MOVE_ROUTES = frozenset({"/sleep", "/wake_up", "/is_sleeping", "/pin", "/unpin"})
ADMIN_ROUTES = _ADAPTER_ROUTES | _MOVE_ROUTES | {"/usage"}
JOB_ROUTES = ("/v1/files", "/v1/batches")
# of what all clients do: for admin keys alone, if there is one or there are tenants
CLUSTER_ROUTES = "/v1/cluster/"
OVERVIEWS = ("/metrics", "/status", "/timeline", "/load")  # of all models
SERVE_ROUTES = "/-/"  # what Serve's proxy answers
UPLOAD = "/v1/files"
FORM_BYTES = 64 * 2**10  # of an upload's form around the file
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEAD_LIMITS = HeadLimits()
PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


def error_response(error: HttpError) -> Response:
    """Return the answer to a request that failed, in the format of the API that it called."""
    return _ErrorResponse(error)


class _ErrorResponse(Response):
    media_type = "application/json"

    def __init__(self, error: HttpError) -> None:
        super().__init__(status_code=error.status, headers=error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body = self._error.body(scope["path"])
        self.headers["content-length"] = f"{len(self.body)}"
        await super().__call__(scope, receive, send)


class Edge:
    """The ASGI wrapper around the routes."""

    def __init__(
        self, app: ASGIApp, settings: ApiSettings, metrics: Metrics, keys: KeyRing
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = keys
        self._pace = Pace(settings.min_body_bytes_per_s, settings.body_window_s)
        self._open_calls = OpenCalls(settings.queues, metrics.refused_unread)
        self._audit_log = AuditLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status = 500
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        key = self._key_of(headers)
        meter = self._keys.meter(key)
        scope.setdefault("state", {}).update(
            request_id=request_id,
            arrived_s=started_s,
            # where no key is asked for, whatever a client sends as one tells nobody apart
            owner=_owner(headers) if self._keys.are_asked_for else "",
            meter=meter,
        )

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = {} if meter is None else meter.headers()
                if self._settings.request_id_header:
                    added["X-Request-Id"] = request_id
                MutableHeaders(scope=message).update(added)
            await send(message)

        try:
            await self._checked(scope, key, receive, send_with_id)
        finally:
            if meter is not None:
                meter.end()
            self._count(scope, status, time.monotonic() - started_s)
            if key is not None and _is_act(scope):
                self._audit_log.note(scope, key, status)

    async def _checked(
        self, scope: Scope, key: TenantKey | None, receive: Receive, send: Send
    ) -> None:
        try:
            _check_head(scope)
        except HeadTooLarge as refused:
            await error_response(head_too_large(refused))(scope, receive, send)
            return
        refusal = _port_refusal(scope) or self._key_refusal(scope["path"], key)
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
        elif _declared_length(Headers(scope=scope)) > self._most_bytes(scope):
            error = http_error(self._too_large(self._most_bytes(scope)))
            await error_response(error)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._admitted(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a call with a body, unless too many are open."""
        try:
            open_call = self._open_calls.enter()
        except Overloaded as error:
            await error_response(http_error(error))(scope, receive, send)
            return
        with open_call:
            await self._app(scope, self._limited(scope, receive, open_call), send)

    def _key_of(self, headers: Headers) -> TenantKey | None:
        """Return the key of a request's bearer token."""
        scheme, given = _credentials(headers)
        return self._keys.find(given) if scheme == "bearer" else None

    def _key_refusal(self, path: str, key: TenantKey | None) -> HttpError | None:
        is_of_cluster = path.startswith(CLUSTER_ROUTES) and self._keys.keep_apart
        is_for_admin = path in ADMIN_ROUTES or is_of_cluster
        if path in OPEN_ROUTES or not (self._keys.are_asked_for or is_for_admin):
            return None
        if is_for_admin and self._keys.are_known and not self._keys.has_admin:
            return status_error(403, "nobody may use this route: server.admin_key is not set")
        if key is None:
            return self._unknown_key()
        if is_for_admin and not key.is_admin:
            return status_error(403, "this route needs the admin key (server.admin_key)")
        return _tenant_refusal(path, key)

    def _unknown_key(self) -> HttpError:
        if not self._keys.are_known:
            return http_error(NotReady("the API keys are not read yet", 2, "keys_unknown"))
        error = status_error(401, "missing or wrong API key")
        error.headers["WWW-Authenticate"] = "Bearer"
        return error

    def _limited(self, scope: Scope, receive: Receive, open_call: OpenCall) -> Receive:
        """Return `receive` with limits.

        It raises ContentTooLarge or Overloaded over a limit, RequestTimeout if the body comes too
        slowly.
        """
        paced = PacedBody(receive, self._pace)
        most, is_held = self._most_bytes(scope), scope["path"] != UPLOAD
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await paced()
            size = len(message.get("body", b""))
            num_bytes += size
            if num_bytes > most:
                raise self._too_large(most)
            if is_held:
                open_call.add_bytes(size)
            return message

        return counted

    def _most_bytes(self, scope: Scope) -> int:
        """Return the size limit of the body; larger for a file, which is not held in memory."""
        batch = self._settings.batch
        if scope["path"] == UPLOAD and batch is not None:
            return batch.max_file_bytes + FORM_BYTES
        return self._settings.max_body_bytes

    def _too_large(self, most: int) -> ContentTooLarge:
        return ContentTooLarge(f"the body is over {most} bytes")

    def _count(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        handler = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self._metrics.http_requests.labels(handler, method, f"{status // 100}xx").inc()
        self._metrics.http_seconds.labels(handler, method).observe(seconds)


def _tenant_refusal(path: str, key: TenantKey) -> HttpError | None:
    """Return 403 for a route that is closed to a key with limits or for some models only."""
    if path.startswith(JOB_ROUTES) and not key.may_run_jobs:
        return status_error(403, "this key may not use files and batches")
    if path.startswith(OVERVIEWS) and key.models is not None and not key.is_admin:
        return status_error(403, "this route tells of models that this key may not use")
    return None


def _port_refusal(scope: Scope) -> HttpError | None:
    """Return 404 for a route of the server's other port."""
    path, port = scope["path"], port_of(scope)
    if port is Port.ALL or path in HEALTH_ROUTES or path.startswith(SERVE_ROUTES):
        return None
    is_operators = path in ADMIN_ROUTES | PAGE_ROUTES or path.startswith(
        (CLUSTER_ROUTES, *OVERVIEWS)
    )
    if is_operators == (port is Port.ADMIN):
        return None
    other = "of clients" if port is Port.ADMIN else "of operators (server.admin)"
    return status_error(404, f"no such route at this port; it may be at the port {other}")


def _is_act(scope: Scope) -> bool:
    """True for a request that would change something as an operator."""
    return scope["method"] == "POST" and scope["path"] in ADMIN_ROUTES


def _check_head(scope: Scope) -> None:
    """Raise HeadTooLarge over our own listener's limits, for requests through another one."""
    headers = scope["headers"]
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    num_bytes = target + sum(len(name) + len(value) for name, value in headers)
    HEAD_LIMITS.check(num_bytes, len(headers))


def _request_id(headers: Headers) -> str:
    """Return the client's own id if it is plain and short, else a new one."""
    given = headers.get("x-request-id", "")
    return given if PLAIN_ID.fullmatch(given) else uuid.uuid4().hex


def _credentials(headers: Headers) -> tuple[str, bytes]:
    """Return scheme and key; `X-Api-Key`, which Anthropic's clients send, is a bearer token too."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if not scheme and (key := headers.get("x-api-key", "").strip()):
        return "bearer", key.encode()
    return scheme.lower(), given.strip().encode()


def _owner(headers: Headers) -> str:
    """Return the owner of files and batches: a digest of the key, empty without one."""
    _, given = _credentials(headers)
    return hashlib.sha256(given).hexdigest()[:32] if given else ""


def _declared_length(headers: Headers) -> int:
    declared = headers.get("content-length", "")
    return int(declared) if re.fullmatch(r"[0-9]{1,18}", declared) else 0
