"""What of a Responses request is kept, and what it reads of responses that were."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import msgspec

from muxcluster.core.errors import InvalidValue, NotFound
from muxcluster.http.apis.reading import Json
from muxcluster.http.apis.responses.answers import FAILED, ResponseAnswers
from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.http.apis.responses.store import (
    MOST_TURN_BYTES,
    MOST_TURNS,
    ResponseStore,
    StoredResponse,
)
from muxcluster.http.calls.call import Call

_MOST_ITEMS = 100  # of a page
_LOST_AFTER_S = 60  # after the time limit of one that is made in the background
_LOST = {
    "code": "server_error",
    "message": "the server that made this response has ended; send the request again",
}


@dataclass(slots=True)
class Keeping:
    """A request whose response is kept."""

    store: ResponseStore
    owner: str
    body: ResponsesBody
    items: Sequence[Json]  # of the request's own input
    answers: ResponseAnswers | None = field(default=None, init=False)

    def answers_of(self, call: Call) -> ResponseAnswers:
        """Return how the response is written; `keep` keeps what that says last."""
        # none shows the input, which is long, and one in the background outlives its request
        body = self.body.model_copy(update={"input": None})
        self.answers = ResponseAnswers(body, call, kept_id=uuid4().hex)
        return self.answers

    async def keep(self) -> None:
        """Keep the response, which has ended. Raises StorageFailed, Unavailable."""
        assert self.answers is not None and self.answers.ended is not None
        await self.store.add(self._stored(self.answers.ended, limit_s=0.0, is_open=False))

    async def begin(self, response: Json, limit_s: float) -> None:
        """Keep a response that is made in the background from now on. Raises as `keep`."""
        await self.store.add(self._stored(response, limit_s=limit_s, is_open=True))

    def _stored(self, response: Json, *, limit_s: float, is_open: bool) -> StoredResponse:
        return StoredResponse(
            response["id"],
            self.owner,
            int(time.time() + limit_s + _LOST_AFTER_S),
            self.body.previous_response_id or "",
            is_open,
            msgspec.json.encode(self.items),
            msgspec.json.encode(response),
        )


async def items_before(store: ResponseStore, owner: str, response_id: str) -> list[Json]:
    """Return the items of the conversation that ends with a response, inputs and outputs.

    Raises NotFound if it, or one before it, is gone or another's, InvalidValue if it has not ended
    or the conversation is too long.
    """
    turns = await store.turns(owner, response_id)
    if not turns:
        raise not_found(response_id, "previous_response_id")
    before = turns[0].previous
    if before and await store.is_open(owner, before) is None:
        raise not_found(before, "previous_response_id")
    if before:
        message = (
            f"the conversation is too long: {MOST_TURNS} responses and "
            f"{MOST_TURN_BYTES // 2**20} MiB are read again"
        )
        raise InvalidValue(message, "previous_response_id")
    if turns[-1].is_open and not _is_lost(turns[-1]):
        message = f"response {response_id} has not ended"
        raise InvalidValue(message, "previous_response_id")
    # megabytes, during which others are answered
    return await asyncio.to_thread(_items, turns)


def _items(turns: Sequence[StoredResponse]) -> list[Json]:
    """Return the inputs and outputs of responses."""
    found: list[Json] = []
    for turn in turns:
        found += json.loads(turn.input)
        found += json.loads(turn.response)["output"]
    return found


def not_found(response_id: str, param: str = "response_id") -> NotFound:
    """Return the error of a response that is gone, was never there, or is another key's."""
    return NotFound(f"no response {response_id:.80}", param)


def shown(stored: StoredResponse) -> Json:
    """Return a kept response as it is answered; one whose server has ended has failed."""
    response: Json = json.loads(stored.response)
    if _is_lost(stored):
        return {**response, "status": FAILED, "error": _LOST}
    return response


def _is_lost(stored: StoredResponse) -> bool:
    """True for an open response whose server has ended."""
    return stored.is_open and time.time() > stored.deadline_s


def shown_items(stored: StoredResponse) -> list[Json]:
    """Return the input of a kept response, each item with an id."""
    items: list[Json] = json.loads(stored.input)
    start = stored.response_id.removeprefix("resp_")
    return [{"id": f"item_{start}_{i}", **item} for i, item in enumerate(items)]


def page_of(items: Sequence[Json], limit: int, after: str | None) -> Json:
    """Return a list of up to `limit` items behind the one with the id `after`.

    Raises InvalidValue for an unknown id, or a limit that is not 1 to 100.
    """
    if not 1 <= limit <= _MOST_ITEMS:
        raise InvalidValue(f"limit must be 1 to {_MOST_ITEMS}", "limit")
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidValue(f"after: no item {after:.80}", "after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
