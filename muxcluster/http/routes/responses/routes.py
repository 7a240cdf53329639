"""/v1/responses: OpenAI's Responses API; what needs kept responses, where there is a store."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from muxcluster.core.errors import InvalidValue, UnsupportedParameter
from muxcluster.http.apis.asked import Asked
from muxcluster.http.apis.reading import Json
from muxcluster.http.apis.responses.answers import CANCELLED, IN_PROGRESS
from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.http.apis.responses.chat import (
    asked_response,
    chat_of,
    input_items,
    not_stored,
    response_body,
)
from muxcluster.http.apis.responses.keeping import (
    Keeping,
    items_before,
    not_found,
    page_of,
    shown,
    shown_items,
)
from muxcluster.http.apis.responses.store import ResponseStore, StoredResponse
from muxcluster.http.routes.documents import documented
from muxcluster.http.routes.generation import answer, answer_after, json_response
from muxcluster.http.routes.responses.background import Background
from muxcluster.http.service import CompletionService

RESPONSES = "/v1/responses"
ONE = f"{RESPONSES}/{{response_id}}"


def response_routes(
    service: CompletionService,
    store: ResponseStore | None,
    background: Background,
    *,
    lenient: bool,
) -> APIRouter:
    """Return the routes over `service`; lenient: unknown fields are ignored.

    store: None: nothing is kept. background: makes responses there; the caller closes it.
    """
    router = APIRouter()

    @router.post(RESPONSES, response_model=None, openapi_extra=documented(ResponsesBody))
    async def responses(request: Request) -> Response:
        if store is None:
            return await answer(request, service, partial(asked_response, lenient=lenient))
        reader = _Reader(store, background, request.state.owner, lenient=lenient)
        return await answer_after(request, service, reader.read)

    if store is None:
        _add_unstored(router)
    else:
        _add_stored(router, store)
    return router


class _Reader:
    """Makes requests of bodies, with the conversation before them."""

    def __init__(
        self, store: ResponseStore, background: Background, owner: str, *, lenient: bool
    ) -> None:
        self._store = store
        self._background = background
        self._owner = owner
        self._lenient = lenient

    async def read(self, data: object) -> Asked:
        """Return the request in a decoded body. Raises RequestError and what the store raises."""
        body = response_body(data, lenient=self._lenient)
        if body.background:
            body = _for_background(body)
        before: Sequence[Json] = ()
        if body.previous_response_id is not None:
            before = await items_before(self._store, self._owner, body.previous_response_id)
        asked = chat_of(body, before)
        if body.store is False:
            return asked
        keeping = Keeping(self._store, self._owner, body, input_items(body))
        if not body.background:
            return replace(asked, answers=keeping.answers_of, keep=keeping.keep)
        return replace(asked, later=partial(self._background.begin, asked, keeping))


def _for_background(body: ResponsesBody) -> ResponsesBody:
    """Return a request of the batch class, unless it says otherwise.

    Raises InvalidValue and UnsupportedParameter for what is not done in the background.
    """
    if body.store is False:
        raise InvalidValue("background needs store: the response is read later", "background")
    if body.stream:
        message = "a response that is made in the background cannot be streamed: poll it"
        raise UnsupportedParameter(message, "stream")
    if body.service_tier is None:
        return body.model_copy(update={"service_tier": "flex"})
    return body


def _add_unstored(router: APIRouter) -> None:
    """Add a clear answer for clients that ask for a response again; none is documented."""

    @router.get(ONE, response_model=None, include_in_schema=False)
    @router.delete(ONE, response_model=None, include_in_schema=False)
    @router.get(f"{ONE}/input_items", response_model=None, include_in_schema=False)
    @router.post(f"{ONE}/cancel", response_model=None, include_in_schema=False)
    async def stored(request: Request) -> Response:
        raise not_stored("response_id")


def _add_stored(router: APIRouter, store: ResponseStore) -> None:
    """Add the routes of kept responses; those of other keys seem not to exist."""

    @router.get(ONE, response_model=None)
    async def retrieve(request: Request, response_id: str, stream: bool = False) -> Response:
        """Return a kept response."""
        if stream:
            raise UnsupportedParameter("a kept response cannot be streamed", "stream")
        return json_response(shown(await _found(store, request, response_id)))

    @router.delete(ONE, response_model=None)
    async def delete(request: Request, response_id: str) -> Response:
        """Forget a response, and give it up if it is being made."""
        if not await store.delete(request.state.owner, response_id):
            raise not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post(f"{ONE}/cancel", response_model=None)
    async def cancel(request: Request, response_id: str) -> Response:
        """Give up a response that is being made in the background."""
        await request.body()
        return json_response(await _cancelled(store, request, response_id))

    @router.get(f"{ONE}/input_items", response_model=None)
    async def listed(
        request: Request,
        response_id: str,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """List the items of a kept response's own input."""
        items = shown_items(await _found(store, request, response_id))
        if order == "desc":
            items.reverse()
        return json_response(page_of(items, limit, after))


async def _found(store: ResponseStore, request: Request, response_id: str) -> StoredResponse:
    """Return a response of the request's key. Raises NotFound."""
    stored = await store.find(request.state.owner, response_id)
    if stored is None:
        raise not_found(response_id)
    return stored


async def _cancelled(store: ResponseStore, request: Request, response_id: str) -> Json:
    """Cancel a response, unless it has ended; return it as it is then. Raises RequestError."""
    stored = await _found(store, request, response_id)
    response = shown(stored)
    if not response["background"]:
        message = "only a response that is made in the background can be cancelled"
        raise InvalidValue(message, "response_id")
    if response["status"] == IN_PROGRESS:
        response = {**response, "status": CANCELLED}
    # one whose server has ended has failed, and stays so
    ended = msgspec.json.encode(response)
    if stored.is_open and await store.end(stored.owner, response_id, ended):
        return response
    return shown(await _found(store, request, response_id))
