"""One HTTP call to a running server, with what can go wrong as our errors."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from muxcluster.core.errors import ConfigError, Unavailable

_REFUSALS = range(400, 500)
_TRY_LATER = (408, 429)


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header that carries the key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def answer_of(
    url: str,
    path: str,
    data: Any,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    method: str | None = None,
) -> http.client.HTTPResponse:
    """As `answer_at`, of `url`/v1/`path`."""
    return answer_at(url, f"v1/{path}", data, headers, timeout_s, method=method)


def answer_at(
    url: str,
    path: str,
    data: Any,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    method: str | None = None,
) -> http.client.HTTPResponse:
    """Return the open answer of `url`/`path`. data: of a POST of JSON; None: a GET.

    method: another one than these. timeout_s: until the start of the answer, and between its parts.
    Raises ConfigError if the server refuses the request, Unavailable if it does not answer or
    cannot serve now.
    """
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/{path}", data, sent, method=method)
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            message = _message(error)
        if error.code in _REFUSALS and error.code not in _TRY_LATER:
            raise ConfigError(url, "", message) from error
        raise Unavailable(f"{url}: {message}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(f"no server answers at {url}: {reason}") from error
    return answer


def _message(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read())["error"]["message"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError, http.client.HTTPException):
        return f"answers {error.code} {error.reason}"
    return str(found)
