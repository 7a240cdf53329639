"""GET and POST /v1/cluster/plan: the plan in force, and what another cluster's would be."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import InvalidValue, NotFound
from muxcluster.http.answers.streaming import unless_disconnected
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import json_response
from muxcluster.http.routes.json_body import json_body
from muxcluster.text.schemas import WhatIfBody
from muxcluster.text.validation.body import parse


class PlanControl(Protocol):
    """Knows the plan in force, and makes others that are not applied."""

    async def plan(self) -> Mapping[str, Any]:
        """Return plan, nodes and models. Raises NotReady."""
        ...

    async def what_if(self, changes: Sequence[str]) -> Mapping[str, Any]:
        """Return the same after changes, with the difference.

        Raises InvalidValue for a wrong change and where not all models fit, Overloaded while
        another plan is made, NotReady.
        """
        ...


def plan_routes(control: PlanControl | None, *, lenient: bool) -> APIRouter:
    """Return the routes; `Edge` asks for the key. control: None where there is no plan."""
    router = APIRouter()

    def controlled() -> PlanControl:
        if control is None:
            raise NotFound("there is a plan on servers of `muxcluster serve` and `up` alone")
        return control

    @router.get("/v1/cluster/plan", response_model=None)
    async def plan() -> Response:
        """Return the plan in force: `plan.json`, nodes, and models with their rates."""
        return json_response(await controlled().plan())

    @router.post("/v1/cluster/plan", response_model=None, openapi_extra=documented(WhatIfBody))
    async def what_if(request: Request) -> Response:
        """Return the plan that would be made after some changes; nothing is changed."""
        body = parse(WhatIfBody, await json_body(request), lenient=lenient)
        if not body.changes:
            raise InvalidValue("give a change at least", "changes")
        asked = controlled().what_if(body.changes)
        return json_response(await unless_disconnected(request, asked))

    return router
