"""POST /v1/embeddings."""

import asyncio
from functools import partial

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import RequestTimeout
from muxcluster.http.answers.embeddings import MOST_INLINE, embeddings, num_numbers
from muxcluster.http.answers.streaming import unless_disconnected
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.embedding import VectorForm
from muxcluster.http.calls.model_text import off_loop
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import request_head
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.service import CompletionService
from muxcluster.text.schemas import EmbeddingBody
from muxcluster.text.validation.body import parse


def embedding_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the route over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    @router.post("/v1/embeddings", response_model=None, openapi_extra=documented(EmbeddingBody))
    async def create(request: Request) -> Response:
        head = request_head(request)
        limit_s = service.time_limit_s(head)
        try:
            async with asyncio.timeout(limit_s):
                body = parse(EmbeddingBody, await json_body(request), lenient=lenient)
                call = await service.prepare_embeddings(body, head)
        except TimeoutError:
            raise RequestTimeout(f"the request was not read within {limit_s:g} s") from None
        with call.admission:
            form = VectorForm.of(body, call.model)
            content = await unless_disconnected(request, _answer(service, call, form))
        return Response(content, media_type="application/json")

    return router


async def _answer(service: CompletionService, call: Call, form: VectorForm) -> bytes:
    """Return the response as JSON."""
    answer = await embeddings(call, service.stream(call), form)
    work = partial(msgspec.json.encode, answer)
    return await off_loop(work, num_numbers(call, form), MOST_INLINE)
