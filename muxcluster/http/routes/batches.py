"""/v1/batches: jobs of many requests, with a deadline."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.batch.service.interface import ApiObject, BatchRequest, BatchService
from muxcluster.batch.store.job import OPEN
from muxcluster.core.errors import Unavailable
from muxcluster.http.answers.streaming import EventStream, unless_disconnected
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.files import listing
from muxcluster.http.routes.generation import json_response
from muxcluster.http.routes.json_body import json_body
from muxcluster.text.schemas import BatchBody, BatchPlanBody
from muxcluster.text.validation.body import parse

MAX_BATCHES = 100
# a stream of a batch has an event at least so often
HEARTBEAT_S = 5.0
# A longer stream ends without its last event, and the client opens another one: a client that does
# not read holds its connection no longer.
MAX_STREAM_S = 3600.0


def batch_routes(batch_service: BatchService) -> APIRouter:
    router = APIRouter(prefix="/v1/batches")

    @router.post("", response_model=None, openapi_extra=documented(BatchBody))
    async def create(request: Request) -> Response:
        body = parse(BatchBody, await json_body(request))
        expiry = body.output_expires_after
        asked = BatchRequest(
            body.input_file_id,
            body.endpoint,
            body.completion_window,
            body.metadata or {},
            None if expiry is None else expiry.seconds,
        )
        return json_response(await batch_service.create(request.state.owner, asked))

    @router.post("/plan", response_model=None, openapi_extra=documented(BatchPlanBody))
    async def plan(request: Request) -> Response:
        body = parse(BatchPlanBody, await json_body(request))
        found = batch_service.plan(request.state.owner, body.input_file_id, body.endpoint)
        return json_response(await unless_disconnected(request, found))

    @router.get("", response_model=None)
    async def list_batches(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_BATCHES)] = 20,
        after: str | None = None,
    ) -> Response:
        return listing(await batch_service.batches(request.state.owner, limit + 1, after), limit)

    @router.get("/{batch_id}", response_model=None)
    async def one_batch(request: Request, batch_id: str) -> Response:
        return json_response(await batch_service.batch(request.state.owner, batch_id))

    @router.get("/{batch_id}/events", response_model=None)
    async def events(request: Request, batch_id: str) -> Response:
        owner = request.state.owner
        batch = await batch_service.batch(owner, batch_id)
        until_s = time.monotonic() + MAX_STREAM_S
        rest = _later_events(batch_service, owner, batch, until_s)
        return EventStream(_event(batch), rest, until_s + HEARTBEAT_S)

    @router.post("/{batch_id}/cancel", response_model=None)
    async def cancel(request: Request, batch_id: str) -> Response:
        return json_response(await batch_service.cancel(request.state.owner, batch_id))

    return router


async def _later_events(
    batch_service: BatchService, owner: str, batch: ApiObject, until_s: float
) -> AsyncGenerator[bytes, None]:
    """Yield the batch whenever it has changed, then the end of the stream.

    While the batch service restarts there are comments. until_s: the stream ends then,
    time.monotonic(), without its last event.
    """
    while batch["status"] in OPEN:
        if time.monotonic() >= until_s:
            return
        try:
            batch = await batch_service.changed(owner, batch, HEARTBEAT_S)
        except Unavailable as error:
            yield b": the batch service restarts\n\n"
            await asyncio.sleep(min(HEARTBEAT_S, error.retry_after_s))
        else:
            yield _event(batch)
    yield b"data: [DONE]\n\n"


def _event(batch: ApiObject) -> bytes:
    return b"data: " + msgspec.json.encode(batch) + b"\n\n"
