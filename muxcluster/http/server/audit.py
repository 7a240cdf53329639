"""The audit log: a line of JSON for each thing that an operator does, or may not do."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from muxcluster.http.metrics.request_log import append_to
from muxcluster.tenants.keys import TenantKey

logger = logging.getLogger("muxcluster.audit")

LONGEST_VALUE = 200  # characters of a query's value


def write_to(path: Path) -> None:
    """Append lines to `path` from now on, and no more to the process's log.

    Only its owner may read it. Raises OSError if it cannot be opened.
    """
    append_to(logger, path)


def note(scope: Scope, key: TenantKey, status: int) -> None:
    """Write who asked for what, and the status of the answer.

    Only requests with a known key: strangers could fill the disk. `http_requests` counts theirs.
    """
    request = Request(scope)
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "key": key.name,
        "address": None if request.client is None else request.client.host,
        "method": request.method,
        "route": scope["path"],
        "query": {
            name[:LONGEST_VALUE]: value[:LONGEST_VALUE]
            for name, value in request.query_params.items()
        },
        "status": status,
        "request_id": request.state.request_id,
    }
    logger.info(msgspec.json.encode(line).decode())
