"""POST /v1/chat/completions and /v1/completions."""

import math
from collections.abc import Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.api.call import Call
from muxcluster.api.documents import documented
from muxcluster.api.json_body import json_body
from muxcluster.api.responses import events, whole
from muxcluster.api.service import CompletionService
from muxcluster.api.streaming import EventStream, unless_disconnected
from muxcluster.api.wire import ChatWire, CompletionWire, Wire
from muxcluster.core.errors import InvalidValue
from muxcluster.text.schemas import ChatBody, CompletionBody, GenerationBody
from muxcluster.text.validation import parse

TIMEOUT_HEADER = "x-request-timeout-seconds"


def generation_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """The two routes over `service`; `lenient` lets unknown fields pass."""
    router = APIRouter()

    async def answer(
        request: Request, schema: type[GenerationBody], wire_of: Callable[[Call], Wire]
    ) -> Response:
        body = parse(schema, await json_body(request), lenient=lenient)
        request_id: str = request.state.request_id
        call = await service.prepare(body, request_id, _timeout_s(request))
        deltas, wire = service.stream(call), wire_of(call)
        if not body.stream:
            return json_response(await unless_disconnected(request, whole(call, deltas, wire)))
        rest = events(call, deltas, wire, body.stream_options)
        # errors before the first event leave as HTTP errors: no header is sent yet
        return EventStream(await unless_disconnected(request, anext(rest)), rest)

    @router.post("/v1/chat/completions", response_model=None, openapi_extra=documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answer(request, ChatBody, ChatWire)

    @router.post("/v1/completions", response_model=None, openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, CompletionBody, CompletionWire)

    return router


def json_response(value: object) -> Response:
    """`value` as a 200 JSON response."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def _timeout_s(request: Request) -> float | None:
    """The client's own limit in seconds. Raises InvalidValue unless positive and finite."""
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidValue(f"{TIMEOUT_HEADER} must be a positive number", TIMEOUT_HEADER)
    return seconds
