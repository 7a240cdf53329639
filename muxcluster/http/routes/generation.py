"""POST /v1/chat/completions and /v1/completions."""

import asyncio
import math
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import InvalidValue, RequestTimeout
from muxcluster.http.answers.responses import events, whole
from muxcluster.http.answers.streaming import EventStream, unless_disconnected
from muxcluster.http.answers.wire import ChatWire, CompletionWire, Wire
from muxcluster.http.calls.call import Call, RequestHead
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.service import CompletionService
from muxcluster.text.schemas import ChatBody, CompletionBody, GenerationBody
from muxcluster.text.validation.body import parse

TIMEOUT_HEADER = "x-request-timeout-seconds"
TIMING_HEADER = "x-muxcluster-timing"
# a stream whose client does not read is cut so long after its time limit
READER_GRACE_S = 5.0


def generation_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the two routes over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    async def answer(
        request: Request, schema: type[GenerationBody], wire_of: Callable[[Call], Wire]
    ) -> Response:
        head = request_head(request)
        limit_s = service.time_limit_s(head)
        try:
            async with asyncio.timeout(limit_s):
                body = parse(schema, await json_body(request), lenient=lenient)
                call = await service.prepare(body, head)
        except TimeoutError:
            raise RequestTimeout(f"the request was not read within {limit_s:g} s") from None
        deltas, wire = service.stream(call), wire_of(call)
        with ExitStack() as ending:
            # a task that is cancelled before its first step releases nothing itself
            ending.enter_context(call.admission)
            if not body.stream:
                return json_response(await unless_disconnected(request, whole(call, deltas, wire)))
            rest = events(call, deltas, wire, body.stream_options)
            # errors before the first event leave as HTTP errors: no header is sent yet
            first = await unless_disconnected(request, anext(rest))
            ending.pop_all()
        return EventStream(first, rest, call.deadline_s + READER_GRACE_S)

    @router.post("/v1/chat/completions", response_model=None, openapi_extra=documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answer(request, ChatBody, ChatWire)

    @router.post("/v1/completions", response_model=None, openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, CompletionBody, CompletionWire)

    return router


def json_response(value: object) -> Response:
    """Return `value` as a 200 JSON response."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def request_head(request: Request) -> RequestHead:
    """Return what a call's headers say. Raises InvalidValue for a wrong one."""
    return RequestHead(
        request_id=request.state.request_id,
        timeout_s=client_limit_s(request),
        arrived_s=request.state.arrived_s,
        wants_timing=request.headers.get(TIMING_HEADER, "0") not in ("", "0", "false"),
    )


def client_limit_s(request: Request) -> float | None:
    """Return the client's own limit. Raises InvalidValue unless positive and finite."""
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
