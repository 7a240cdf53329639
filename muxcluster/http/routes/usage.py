"""GET /usage: what each key used of each model on each day."""

import re
from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import InvalidValue, UnsupportedParameter
from muxcluster.http.routes.generation import json_response
from muxcluster.tenants.messages import KeyService, UsageQuery

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_KNOWN = ("key", "model", "since", "until")


def usage_routes(key_service: KeyService) -> APIRouter:
    """Return the route; `Edge` lets admin keys alone through."""
    router = APIRouter()

    @router.get("/usage", response_model=None)
    async def usage(
        request: Request,
        key: str | None = None,
        model: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Response:
        """List the ledger's rows; `since` and `until` are days in UTC, both included."""
        unknown = sorted(set(request.query_params) - set(_KNOWN))
        if unknown:
            raise UnsupportedParameter(f"{unknown[0]} is not supported here", unknown[0])
        for name, day in (("since", since), ("until", until)):
            if day is not None and not _DAY.fullmatch(day):
                raise InvalidValue(f"{name} is a day, YYYY-MM-DD", name)
        rows = await key_service.usage(UsageQuery(key, model, since, until))
        return json_response({"object": "list", "data": [asdict(row) for row in rows]})

    return router
