"""POST /v1/embeddings, /v1/score and /v1/rerank."""

import asyncio
from functools import partial
from typing import TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import RequestTimeout
from muxcluster.http.answers.embeddings import MOST_INLINE, embeddings, num_numbers
from muxcluster.http.answers.scores import reranked, scores
from muxcluster.http.answers.streaming import unless_disconnected
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.embedding import VectorForm
from muxcluster.http.calls.model_text import off_loop
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import json_response, request_head
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.service import CompletionService
from muxcluster.text.schemas import EmbeddingBody, RerankBody, ScoreBody, TextsBody
from muxcluster.text.validation.body import parse

Body = TypeVar("Body", bound=TextsBody)


def embedding_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the routes of embedding models over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    async def prepared(request: Request, schema: type[Body]) -> tuple[Body, Call]:
        """Return the body and its call, whose admission the caller releases."""
        head = request_head(request)
        limit_s = service.time_limit_s(head)
        try:
            async with asyncio.timeout(limit_s):
                body = parse(schema, await json_body(request), lenient=lenient)
                return body, await service.prepare_embeddings(body, head)
        except TimeoutError:
            raise RequestTimeout(f"the request was not read within {limit_s:g} s") from None

    @router.post("/v1/embeddings", response_model=None, openapi_extra=documented(EmbeddingBody))
    async def create(request: Request) -> Response:
        body, call = await prepared(request, EmbeddingBody)
        with call.admission:
            form = VectorForm.of(body, call.model)
            content = await unless_disconnected(request, _written(service, call, form))
        return Response(content, media_type="application/json")

    @router.post("/v1/score", response_model=None, openapi_extra=documented(ScoreBody))
    async def score(request: Request) -> Response:
        body, call = await prepared(request, ScoreBody)
        with call.admission:
            answer = scores(call, service.stream(call), body)
            return json_response(await unless_disconnected(request, answer))

    @router.post("/v1/rerank", response_model=None, openapi_extra=documented(RerankBody))
    async def rerank(request: Request) -> Response:
        body, call = await prepared(request, RerankBody)
        with call.admission:
            answer = reranked(call, service.stream(call), body)
            return json_response(await unless_disconnected(request, answer))

    return router


async def _written(service: CompletionService, call: Call, form: VectorForm) -> bytes:
    """Return the response of /v1/embeddings as JSON."""
    answer = await embeddings(call, service.stream(call), form)
    work = partial(msgspec.json.encode, answer)
    return await off_loop(work, num_numbers(call, form), MOST_INLINE)
