"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.http.apis.asked import naming
from muxcluster.http.apis.messages.body import CountTokensBody, MessagesBody
from muxcluster.http.apis.messages.chat import NAMES, asked_count, asked_message
from muxcluster.http.errors import MESSAGES
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import allowed_models, answer, json_response
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.service import CompletionService


def message_routes(service: CompletionService, *, lenient: bool) -> APIRouter:
    """Return the two routes over `service`; lenient: unknown fields are ignored."""
    router = APIRouter()

    @router.post(MESSAGES, response_model=None, openapi_extra=documented(MessagesBody))
    async def messages(request: Request) -> Response:
        return await answer(request, service, partial(asked_message, lenient=lenient))

    counting = f"{MESSAGES}/count_tokens"

    @router.post(counting, response_model=None, openapi_extra=documented(CountTokensBody))
    async def count_tokens(request: Request) -> Response:
        chat = asked_count(await json_body(request), lenient=lenient)
        with naming(NAMES):
            counted = await service.count_tokens(chat, allowed_models(request))
        return json_response({"input_tokens": counted})

    return router
