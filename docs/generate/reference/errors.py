"""docs/reference/errors.md: the error tree with the HTTP answer and the exit code of each error."""

from collections.abc import Callable, Iterator
from typing import Any

from docs.generate.markdown import first_line, page, table
from muxcluster.cli.main import BAD_INPUT
from muxcluster.core import errors
from muxcluster.core.errors import MuxClusterError
from muxcluster.http.errors import STATUS_CODES, http_error

_INTRODUCTION = """\
# Errors

Every HTTP error has OpenAI's shape, apart from those of `/v1/messages`, which have
[Anthropic's](../guides/other-apis.md#messages):

```json
{"error": {"message": "…", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}
```

Clients of OpenAI retry 408, 409, 429 and 5xx by themselves; errors that would only repeat carry
`x-should-retry: false`. 429 and 503 carry `Retry-After`. On the command line every error is one
line on standard error, and the exit code tells bad input (2) from a failure (1)."""
_FRAMEWORK = """\
Answers to requests that no route takes, or that the server stops reading:"""


def errors_page() -> str:
    """Return the page."""
    tree = table(
        ("error", "HTTP status", "`code`", "exit code", "meaning"),
        [_row(kind, depth) for kind, depth in _walk(MuxClusterError, 0)],
    )
    others = table(
        ("HTTP status", "`type`", "`code`"),
        [(str(status), f"`{kind}`", f"`{code}`") for status, (kind, code) in STATUS_CODES.items()],
    )
    return page(_INTRODUCTION, "## Errors of requests and commands", tree, _FRAMEWORK, others)


def _walk(kind: type[MuxClusterError], depth: int) -> Iterator[tuple[type[MuxClusterError], int]]:
    yield kind, depth
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _walk(below, depth + 1)


def _row(kind: type[MuxClusterError], depth: int) -> tuple[str, str, str, str, str]:
    name = "&emsp;" * depth + f"`{kind.__name__}`"
    exit_code = "2" if issubclass(kind, BAD_INPUT) else "1"
    if kind is MuxClusterError or issubclass(kind, BAD_INPUT):
        return name, "", "", exit_code if depth else "", first_line(kind.__doc__)
    answer = http_error(_example(kind))
    codes = f"`{answer.code}`"
    return name, str(answer.status), codes, exit_code, first_line(kind.__doc__)


def _example(kind: type[MuxClusterError]) -> MuxClusterError:
    """Return an error of the kind. Raises KeyError for one with arguments that are not known."""
    make: Callable[..., MuxClusterError] = kind
    arguments: dict[type[MuxClusterError], tuple[Any, ...]] = {
        errors.StorageFailed: ("file", "no space"),
    }
    return make(*arguments.get(kind, ("message",)))
