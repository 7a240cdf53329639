"""Turns errors into HTTP answers in OpenAI's or Anthropic's format: status, type and headers."""

from dataclasses import dataclass, field

import msgspec

from muxcluster.core.errors import (
    ContentTooLarge,
    ContextLengthExceeded,
    EngineFailure,
    InvalidValue,
    ModelNotFound,
    MuxClusterError,
    NotFound,
    NotReady,
    Overloaded,
    PermissionDenied,
    PoisonRequest,
    RequestError,
    RequestTimeout,
    StorageFailed,
    StorageQuotaExceeded,
    Unavailable,
    UnsupportedMediaType,
)
from muxcluster.core.events import Rejected

MESSAGES = "/v1/messages"  # the route of the Messages API, and the start of its others


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as the client sees it."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, path: str = "") -> bytes:
        """Return `{"error": {...}}` as JSON, in the format of the API of the route `path`."""
        if path.startswith(MESSAGES):
            error = {"type": _messages_type(self.status), "message": self.message}
            return msgspec.json.encode({"type": "error", "error": error})
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": fields})


INVALID = "invalid_request_error"
DENIED = "permission_error"
_REQUEST_STATUS: dict[type[RequestError], int] = {
    ModelNotFound: 404,
    NotFound: 404,
    PermissionDenied: 403,
    ContentTooLarge: 413,
    # as other stores do; clients try 409 and 429 again, which would not help
    StorageQuotaExceeded: 403,
    UnsupportedMediaType: 415,
}
# Answers to statuses that the framework or the listener raises: type and code.
STATUS_CODES: dict[int, tuple[str, str]] = {
    400: (INVALID, "invalid_value"),
    401: (INVALID, "invalid_api_key"),
    403: (DENIED, "permission_denied"),
    404: (INVALID, "not_found"),
    405: (INVALID, "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: (INVALID, "content_too_large"),
    415: (INVALID, "unsupported_media_type"),
    431: (INVALID, "request_head_too_large"),
}

# types of errors in the Messages API; other statuses have those of 400 and 500
_MESSAGES_TYPES: dict[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def http_error(error: Exception) -> HttpError:
    """Return the answer for `error`; an error that we did not raise on purpose is a plain 500."""
    if isinstance(error, RequestError):
        status = _REQUEST_STATUS.get(type(error), 400)
        kind = DENIED if isinstance(error, PermissionDenied) else INVALID
        return HttpError(status, kind, error.code, error.message, error.param)
    if isinstance(error, Unavailable):
        return _unavailable(error)
    if isinstance(error, RequestTimeout):
        # the client may be in the middle of its body
        headers = {"Connection": "close"}
        return HttpError(408, "timeout_error", "request_timeout", str(error), None, headers)
    if isinstance(error, PoisonRequest):
        headers = {"x-should-retry": "false"}
        return HttpError(500, "server_error", error.code, str(error), None, headers)
    if isinstance(error, StorageFailed):
        # where on the server's disk is not the client's business
        message = f"the server could not store it: {error.reason}"
        return HttpError(507, "server_error", "storage_full", message)
    message = str(error) if isinstance(error, EngineFailure) else "internal error"
    return HttpError(500, "server_error", "internal_error", message)


def _unavailable(error: Unavailable) -> HttpError:
    """Return 429 for a full queue, else 503; clients obey Retry-After up to a minute."""
    headers = {"Retry-After": str(min(60, max(1, round(error.retry_after_s))))}
    if isinstance(error, Overloaded):
        return HttpError(429, "rate_limit_error", error.code, error.message, None, headers)
    kind = "service_unavailable_error"
    return HttpError(503, kind, error.code, error.message, None, headers)


def status_error(status: int, message: str) -> HttpError:
    """Return the answer for a status that the framework raised (no such route, wrong method)."""
    default = ("server_error", "internal_error") if status >= 500 else (INVALID, "invalid_value")
    kind, code = STATUS_CODES.get(status, default)
    return HttpError(status, kind, code, message)


def _messages_type(status: int) -> str:
    """Return the type that the Messages API has for errors of a status."""
    return _MESSAGES_TYPES.get(status, "api_error" if status >= 500 else INVALID)


def rejection(rejected: Rejected) -> MuxClusterError:
    """Return the error of a unit's `Rejected`."""
    code, message = rejected.code, rejected.message
    if code == ContextLengthExceeded.code:
        return ContextLengthExceeded(message)
    if code == Overloaded.code:
        return Overloaded(message)
    if code == ModelNotFound.code:
        return ModelNotFound(message, "model")
    if code == Unavailable.code:
        return Unavailable(message)
    if code in ("model_loading", "server_shutting_down", "replica_lost"):
        return NotReady(message, code=code)
    return InvalidValue(message)
