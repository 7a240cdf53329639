"""All errors of the project. Only the API layer turns them into HTTP, only the CLI into exit codes.

MuxClusterError
├── RequestError            one request is wrong; `code` is OpenAI's error code, `param` the field
│   ├── InvalidValue            invalid_value
│   ├── InvalidJson             invalid_json
│   ├── MissingParameter        missing_required_parameter
│   ├── UnsupportedParameter    unsupported_parameter
│   ├── ContextLengthExceeded   context_length_exceeded
│   ├── ModelNotFound           model_not_found
│   ├── NotFound                not_found
│   ├── PermissionDenied        permission_denied
│   ├── ContentTooLarge         content_too_large
│   ├── StorageQuotaExceeded    storage_quota_exceeded
│   ├── UnsupportedMediaType    unsupported_media_type
│   ├── ChatTemplateLimit       chat_template_limit
│   └── MoveRefused             move_refused
├── Unavailable             the request is valid, the server cannot take it now; `retry_after_s`
│   ├── Overloaded              rate_limit_exceeded
│   └── NotReady                model_loading, server_shutting_down, replica_lost,
│                               no_capacity, controller_lost, batches_lost,
│                               model_parked, model_held, keys_unknown,
│                               keys_lost, stalled, responses_lost
├── ConfigError             a file the user wrote is wrong; names file and key
├── LoadError               a model directory cannot be loaded; names the file
├── InfeasiblePlan          the models do not fit the cluster; names model and gigabytes
├── RequestTimeout          the request's time limit passed
├── StorageFailed           a file could not be written to disk; names the file
└── EngineFailure           our own fault: a worker, owner or unit is gone
    └── PoisonRequest           this request fails every job it is in; do not retry
        ├── NonFiniteLogits         the model computed NaN or infinite logits for it
        └── ConstraintFailed        its grammar could not be followed to the end
"""

from pathlib import Path


class MuxClusterError(Exception):
    """Root of every error this project raises on purpose."""


class RequestError(MuxClusterError):
    """A request that can never succeed as sent.

    `param` names the offending request field (None when no single field is at fault).
    """

    code = "invalid_value"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidValue(RequestError):
    """A field has the wrong type or lies outside its range."""


class InvalidJson(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class MissingParameter(RequestError):
    """A field that every request needs is absent."""

    code = "missing_required_parameter"


class UnsupportedParameter(RequestError):
    """A field that would change the output and is not supported."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """Prompt, or prompt plus max_tokens, is longer than the model's context."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """No model of that name is served here."""

    code = "model_not_found"


class NotFound(RequestError):
    """No file or batch of that id, or it is another key's."""

    code = "not_found"


class PermissionDenied(RequestError):
    """The key may not do this."""

    code = "permission_denied"


class ContentTooLarge(RequestError):
    """The body is over the size limit."""

    code = "content_too_large"


class StorageQuotaExceeded(RequestError):
    """The key's files and results hold all the bytes that it may keep."""

    code = "storage_quota_exceeded"


class UnsupportedMediaType(RequestError):
    """The body is of a content type that the route does not read."""

    code = "unsupported_media_type"


class ChatTemplateLimit(RequestError):
    """Rendering the messages takes more time or memory than a chat template may take."""

    code = "chat_template_limit"


class MoveRefused(RequestError):
    """A model's weights cannot be parked, woken or pinned as asked."""

    code = "move_refused"


class Unavailable(MuxClusterError):
    """The request is valid and may be sent again after `retry_after_s` seconds."""

    code = "server_is_overloaded"

    def __init__(self, message: str, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class Overloaded(Unavailable):
    """A bounded queue is full."""

    code = "rate_limit_exceeded"


class NotReady(Unavailable):
    """The model is loading or has no place, the server drains, or the replica was lost."""

    code = "model_loading"


class ConfigError(MuxClusterError):
    """A configuration or plan file is wrong; the message names file, key and remedy in one line.

    line: in the file, counted from 1; None if unknown.
    """

    def __init__(self, path: Path | str, key: str, message: str, line: int | None = None) -> None:
        place = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{place}: {key}: {message}" if key else f"{place}: {message}")
        self.path = Path(path)
        self.key = key
        self.line = line
        self._given = (path, key, message, line)

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[Path | str, str, str, int | None]]:
        return type(self), self._given


class LoadError(MuxClusterError):
    """A model directory cannot be loaded; the message names the file at fault."""

    def __init__(self, path: Path | str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = Path(path)
        self.reason = message

    def __reduce__(self) -> tuple[type["LoadError"], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class InfeasiblePlan(MuxClusterError):
    """The models do not fit the cluster."""


class RequestTimeout(MuxClusterError):
    """The request's time limit passed before its last token."""


class StorageFailed(MuxClusterError):
    """A file could not be written; what was stored before is intact."""

    def __init__(self, path: Path | str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = Path(path)
        self.reason = message

    def __reduce__(self) -> tuple[type["StorageFailed"], tuple[Path, str]]:
        return StorageFailed, (self.path, self.reason)


class EngineFailure(MuxClusterError):
    """A worker, owner or unit is gone and the request could not be finished."""


class PoisonRequest(EngineFailure):
    """The request failed in every job it was part of; repeating it would fail again."""

    code = "poison_request"


class NonFiniteLogits(PoisonRequest):
    """The model computed NaN or infinite logits for the request, so its tokens would be noise."""

    code = "non_finite_logits"


class ConstraintFailed(PoisonRequest):
    """The request's grammar could not be followed: it took too much work at some token."""

    code = "constraint_failed"
