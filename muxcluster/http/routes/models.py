"""GET /v1/models, POST /tokenize and /detokenize."""

import time
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import MissingParameter
from muxcluster.core.served import ServedModel
from muxcluster.http.calls.model_text import ModelText, ModelTexts, off_loop
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import allowed_models, json_response
from muxcluster.http.routes.json_body import json_body
from muxcluster.http.settings import ApiSettings
from muxcluster.text.schemas import DetokenizeBody, TokenizeBody
from muxcluster.text.tools.asked import asked_tools
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.prompts import chat_messages, token_ids


def model_routes(texts: ModelTexts, settings: ApiSettings) -> APIRouter:
    """Return the routes that need no engine."""
    router = APIRouter()
    created = int(time.time())

    @router.get("/v1/models", response_model=None)
    async def list_models(request: Request) -> Response:
        offered = texts.offered(allowed_models(request)).values()
        objects = [_model_object(text.served, created) for text in offered]
        return json_response({"object": "list", "data": objects})

    @router.get("/v1/models/{model:path}", response_model=None)
    async def one_model(request: Request, model: str) -> Response:
        found = texts.find(model, allowed_models(request))
        return json_response(_model_object(found.served, created))

    @router.post("/tokenize", response_model=None, openapi_extra=documented(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = parse(TokenizeBody, await json_body(request), lenient=settings.lenient)
        text = texts.find(body.model, allowed_models(request))
        prompt, special = await _prompt(body, text)
        work = partial(_tokenized, body, text, prompt, special)
        return json_response(await off_loop(work, len(prompt), settings.inline_chars))

    @router.post("/detokenize", response_model=None, openapi_extra=documented(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = parse(DetokenizeBody, await json_body(request), lenient=settings.lenient)
        text = texts.find(body.model, allowed_models(request))
        ids = token_ids(body.tokens, text.served.vocab_size, "tokens").tolist()
        work = partial(text.tokenizer.decode, ids, False)
        return json_response({"prompt": await off_loop(work, len(ids), settings.inline_chars)})

    return router


def _model_object(model: ServedModel, created: int) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "muxcluster",
        "root": model.name,
        "parent": model.base or None,
        "max_model_len": model.max_model_len,
        "permission": [],
    }


async def _prompt(body: TokenizeBody, text: ModelText) -> tuple[str, bool]:
    """Return the text that a call would tokenise, and whether with special tokens.

    Raises MissingParameter for neither.
    """
    if body.messages is not None:
        messages = chat_messages(body.messages)
        rendered = await text.render_async(body, messages, asked_tools(body.tools))
        return rendered, bool(body.add_special_tokens)
    if body.prompt is not None:
        return body.prompt, body.add_special_tokens is not False
    raise MissingParameter("missing required field prompt (or messages)", "prompt")


def _tokenized(
    body: TokenizeBody, text: ModelText, prompt: str, add_special_tokens: bool
) -> dict[str, object]:
    tokens = text.encode(prompt, add_special_tokens=add_special_tokens)
    ids = tokens.tolist()
    return {
        "count": len(ids),
        "max_model_len": text.served.max_model_len,
        "tokens": ids,
        "token_strs": [text.tokenizer.token_text(i) for i in ids]
        if body.return_token_strs
        else None,
    }
