"""The audit log: a line of JSON for each thing that an operator does, and for some of those that
others may not do."""

import asyncio
import logging
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from muxcluster.http.metrics.request_log import append_to
from muxcluster.tenants.keys import TenantKey

logger = logging.getLogger("muxcluster.audit")
logger.setLevel(logging.WARNING)  # off until it has a file

LONGEST_VALUE = 200  # characters of a query's name or value
MOST_NAMES = 16  # of a query
# Requests of one key that is no operator's, in a period; further ones are only counted
MOST_REFUSED = 10
PERIOD_S = 60.0


def write_to(path: Path) -> None:
    """Append lines to `path` from now on, and no more to the process's log.

    Only its owner may read it. Raises OSError if it cannot be opened.
    """
    append_to(logger, path)


class AuditLog:
    """Writes who asked for what, and the status of the answer.

    Only requests with a known key: strangers could fill the disk. `http_requests` counts theirs. Of
    a key that is no operator's the first `MOST_REFUSED` in `PERIOD_S` seconds, then a number.
    """

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()  # in its period, by name of the key

    def note(self, scope: Scope, key: TenantKey, status: int) -> None:
        """Write a request at its end. Must be called on the event loop."""
        if key.is_admin:
            query = islice(Request(scope).query_params.items(), MOST_NAMES)
            shown = {name[:LONGEST_VALUE]: value[:LONGEST_VALUE] for name, value in query}
            _write(scope, key, status, shown)
            return
        if not self._refused[key.name]:
            asyncio.get_running_loop().call_later(PERIOD_S, self._end_period, key.name)
        self._refused[key.name] += 1
        if self._refused[key.name] <= MOST_REFUSED:
            _write(scope, key, status, None)

    def _end_period(self, name: str) -> None:
        num_left_out = self._refused.pop(name) - MOST_REFUSED
        if num_left_out > 0:
            _log({"time": _now(), "key": name, "refused_and_not_written": num_left_out})


def _write(scope: Scope, key: TenantKey, status: int, query: dict[str, str] | None) -> None:
    request = Request(scope)
    line = {
        "time": _now(),
        "key": key.name,
        "address": None if request.client is None else request.client.host,
        "method": request.method,
        "route": scope["path"],
        "query": query,
        "status": status,
        "request_id": request.state.request_id,
    }
    _log(line)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _log(line: dict[str, object]) -> None:
    logger.info(msgspec.json.encode(line).decode())
