"""POST /v1/responses: OpenAI's Responses API, without what would need stored responses."""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.http.apis.responses.chat import asked_response, not_stored
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import answer
from muxcluster.http.service import CompletionService

RESPONSES = "/v1/responses"


def response_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the routes over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    @router.post(RESPONSES, response_model=None, openapi_extra=documented(ResponsesBody))
    async def responses(request: Request) -> Response:
        return await answer(request, service, partial(asked_response, lenient=lenient))

    # a clear answer for clients that ask for a response again; none of these is documented
    one = f"{RESPONSES}/{{response_id}}"

    @router.get(one, response_model=None, include_in_schema=False)
    @router.delete(one, response_model=None, include_in_schema=False)
    @router.get(f"{one}/input_items", response_model=None, include_in_schema=False)
    @router.post(f"{one}/cancel", response_model=None, include_in_schema=False)
    async def stored(request: Request) -> Response:
        raise not_stored("response_id")

    return router
