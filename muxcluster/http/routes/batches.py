"""/v1/batches: jobs of many requests, with a deadline."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.batch.service.interface import BatchRequest, BatchService
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.files import listing
from muxcluster.http.routes.generation import json_response
from muxcluster.http.routes.json_body import json_body
from muxcluster.text.schemas import BatchBody
from muxcluster.text.validation.body import parse

MAX_BATCHES = 100


def batch_routes(batch_service: BatchService) -> APIRouter:
    router = APIRouter(prefix="/v1/batches")

    @router.post("", response_model=None, openapi_extra=documented(BatchBody))
    async def create(request: Request) -> Response:
        body = parse(BatchBody, await json_body(request))
        asked = BatchRequest(
            body.input_file_id, body.endpoint, body.completion_window, body.metadata or {}
        )
        return json_response(await batch_service.create(request.state.owner, asked))

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

    @router.post("/{batch_id}/cancel", response_model=None)
    async def cancel(request: Request, batch_id: str) -> Response:
        return json_response(await batch_service.cancel(request.state.owner, batch_id))

    return router
