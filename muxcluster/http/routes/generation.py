"""POST /v1/chat/completions, /v1/completions, /invocations; how a generation is answered."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import InvalidValue, RequestTimeout
from muxcluster.http.answers.responses import Answers, Deltas, WireAnswers, events
from muxcluster.http.answers.streaming import EventStream, unless_disconnected
from muxcluster.http.answers.wire import ChatWire, CompletionWire, Json
from muxcluster.http.apis.asked import Asked, naming
from muxcluster.http.calls.call import RequestHead
from muxcluster.http.keys.meter import Meter
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.service import CompletionService
from muxcluster.text.schemas import ChatBody, CompletionBody
from muxcluster.text.validation.body import parse

TIMEOUT_HEADER = "x-request-timeout-seconds"
TIMING_HEADER = "x-muxcluster-timing"
# W3C Trace Context: version, trace, span, flags; versions after 00 may add fields
TRACE_HEADER = "traceparent"
TRACE = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
# a stream whose client does not read is cut so long after its time limit
READER_GRACE_S = 5.0


def generation_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the routes over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None, openapi_extra=documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answer(request, service, partial(_chat, lenient=lenient))

    @router.post("/v1/completions", response_model=None, openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answer(request, service, partial(_completion, lenient=lenient))

    # what SageMaker calls, as in vLLM
    @router.post("/invocations", response_model=None)
    async def invocations(request: Request) -> Response:
        return await answer(request, service, partial(_either, lenient=lenient))

    return router


async def answer(
    request: Request, service: CompletionService, read: Callable[[object], Asked]
) -> Response:
    """Answer one request, whole or as a stream.

    read: makes a checked body of the decoded one. Raises what `read` and the service raise, and
    RequestTimeout.
    """

    async def read_at_once(data: object) -> Asked:
        return read(data)

    return await answer_after(request, service, read_at_once)


async def answer_after(
    request: Request, service: CompletionService, read: Callable[[object], Awaitable[Asked]]
) -> Response:
    """As `answer`, where reading waits for something."""
    head = request_head(request)
    limit_s = service.time_limit_s(head)
    try:
        async with asyncio.timeout(limit_s):
            asked = await read(await json_body(request))
            if asked.later is not None:
                return json_response(await asked.later(head))
            with naming(asked.names):
                call = await service.prepare(asked.body, head)
    except TimeoutError:
        raise RequestTimeout(f"the request was not read within {limit_s:g} s") from None
    deltas, answers = service.stream(call), asked.answers(call)
    with ExitStack() as ending:
        # a task that is cancelled before its first step releases nothing itself
        ending.enter_context(call.admission)
        if not asked.body.stream:
            work = _whole(answers, deltas, asked.keep)
            return json_response(await unless_disconnected(request, work))
        rest = events(deltas, answers.writer(), asked.keep)
        # errors before the first event leave as HTTP errors: no header is sent yet
        first = await unless_disconnected(request, anext(rest))
        ending.pop_all()
    return EventStream(first, rest, call.deadline_s + READER_GRACE_S)


async def _whole(
    answers: Answers, deltas: Deltas, keep: Callable[[], Awaitable[None]] | None
) -> Json:
    value = await answers.whole(deltas)
    if keep is not None:
        await keep()
    return value


def _chat(data: object, *, lenient: bool) -> Asked:
    body = parse(ChatBody, data, lenient=lenient)
    return Asked(body, lambda call: WireAnswers(call, ChatWire(call), body.stream_options))


def _completion(data: object, *, lenient: bool) -> Asked:
    body = parse(CompletionBody, data, lenient=lenient)
    return Asked(body, lambda call: WireAnswers(call, CompletionWire(call), body.stream_options))


def _either(data: object, *, lenient: bool) -> Asked:
    is_chat = isinstance(data, Mapping) and "messages" in data
    return (_chat if is_chat else _completion)(data, lenient=lenient)


def json_response(value: object) -> Response:
    """Return `value` as a 200 JSON response."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def request_head(request: Request) -> RequestHead:
    """Return what a call's headers say.

    Raises InvalidValue for a wrong one; a wrong trace context is none, as the standard asks.
    """
    trace = TRACE.fullmatch(request.headers.get(TRACE_HEADER, ""))
    return RequestHead(
        request_id=request.state.request_id,
        timeout_s=client_limit_s(request),
        arrived_s=request.state.arrived_s,
        wants_timing=request.headers.get(TIMING_HEADER, "0") not in ("", "0", "false"),
        meter=request.state.meter,
        trace_id=trace[1] if trace else "",
        parent_span_id=trace[2] if trace else "",
        is_sampled=bool(int(trace[3], 16) & 1) if trace else True,
    )


def allowed_models(request: Request) -> tuple[str, ...] | None:
    """Return the models that the request's key may use; None: all."""
    meter: Meter | None = request.state.meter
    return None if meter is None else meter.key.models


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
