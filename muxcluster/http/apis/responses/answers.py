"""Writes chat outputs as responses and events of the Responses API."""

import time
from collections.abc import Sequence
from typing import Any

from muxcluster.core.events import FinishReason
from muxcluster.http.answers.responses import Deltas, EventWriter, collected
from muxcluster.http.answers.usage import UsageTally
from muxcluster.http.apis.events import named_event
from muxcluster.http.apis.items import (
    Begun,
    Ended,
    Grown,
    Item,
    ItemEvent,
    ItemKind,
    ItemStream,
    parts_of,
    whole_items,
)
from muxcluster.http.apis.reading import Json
from muxcluster.http.apis.responses.body import ResponsesBody
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.errors import HttpError

IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED = "in_progress", "completed", "incomplete", "failed"
CANCELLED = "cancelled"
_PREFIXES = {ItemKind.TEXT: "msg", ItemKind.REASONING: "rs", ItemKind.CALL: "fc"}
# what of an item grows, in the names of events
_GROWTH = {
    ItemKind.TEXT: "output_text",
    ItemKind.REASONING: "reasoning_text",
    ItemKind.CALL: "function_call_arguments",
}


class ResponseAnswers:
    """The answer to one Responses request."""

    def __init__(self, body: ResponsesBody, call: Call, *, kept_id: str = "") -> None:
        """kept_id: of a response that is kept, unique; empty for one that is not."""
        self._body = body
        self._call = call
        self._is_kept = bool(kept_id)
        self._id = kept_id or call.call_id.removeprefix("chatcmpl-")
        self.ended: Json | None = None  # the response as it was written last, once it has ended
        self._created = int(time.time())

    @property
    def response_id(self) -> str:
        return f"resp_{self._id}"

    async def whole(self, deltas: Deltas) -> Json:
        found = await collected(deltas)
        usage = UsageTally(self._call)
        for delta in found:
            usage.add(delta)
        items = whole_items(found, keeps_cut_calls=True)
        status = _status(found[-1])
        return self.response(status, self.output(items, status), usage)

    def writer(self) -> EventWriter:
        return _ResponseWriter(self, self._call)

    def output(self, items: Sequence[Item], status: str) -> list[Json]:
        """Return the items of a response that ends with `status`, which the last item has."""
        last = len(items) - 1
        return [
            self.item(i, item, status if i == last else COMPLETED) for i, item in enumerate(items)
        ]

    def item(self, index: int, item: Item, status: str) -> Json:
        """Return one item of a response.

        status: that of a call that has ended tells whether it is whole, whatever `status` is.
        """
        if item.kind is ItemKind.CALL and status != IN_PROGRESS:
            status = COMPLETED if item.is_whole else INCOMPLETE
        fields = {"id": self.item_id(index, item.kind), "status": status}
        content = [content_part(item.kind, item.text)] if item.text else []
        match item.kind:
            case ItemKind.TEXT:
                return {"type": "message", **fields, "role": "assistant", "content": content}
            case ItemKind.REASONING:
                return {"type": "reasoning", **fields, "summary": [], "content": content}
            case ItemKind.CALL:
                call = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
                return {"type": "function_call", **fields, **call}

    def item_id(self, index: int, kind: ItemKind) -> str:
        """Return the id of the response's item at `index`."""
        return f"{_PREFIXES[kind]}_{self._id}_{index}"

    def response(
        self,
        status: str,
        output: list[Json],
        usage: UsageTally | None = None,
        error: HttpError | None = None,
    ) -> Json:
        """Return the response object. usage: None before the end."""
        body = self._body
        is_cut = status == INCOMPLETE
        response = {
            "id": self.response_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None if error is None else {"code": error.code, "message": error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._call.model.served.name,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "background": bool(body.background),
            "store": self._is_kept,
            "temperature": self._call.sampling.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": self._call.sampling.top_p,
            "truncation": "disabled",
            "service_tier": body.service_tier or "default",
            "metadata": body.metadata or {},
            "usage": None if usage is None else _usage(usage),
        }
        if status != IN_PROGRESS:
            self.ended = response
        return response


def _status(last: ChoiceDelta) -> str:
    """Return the status of a response by its last delta."""
    return INCOMPLETE if last.finish_reason == FinishReason.LENGTH.value else COMPLETED


def content_part(kind: ItemKind, text: str) -> Json:
    """Return the part of an item with a text."""
    if kind is ItemKind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: UsageTally) -> Json:
    counts = usage.counts()
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": counts.prompt + counts.output,
        **usage.timing(),
    }


class _ResponseWriter:
    """Writes the events of one response, numbered."""

    def __init__(self, answers: ResponseAnswers, call: Call) -> None:
        self._answers = answers
        self._usage = UsageTally(call)
        self._items = ItemStream()
        self._last: ChoiceDelta | None = None
        self._num_events = 0

    def write(self, delta: ChoiceDelta) -> bytes:
        """Return the events of one delta, the start of the response before the first."""
        self._usage.add(delta)
        begin = b"" if self._last is not None else self._begin()
        self._last = delta
        found = [event for part in parts_of(delta) for event in self._items.push(part)]
        return begin + self._written(found, COMPLETED)

    def _begin(self) -> bytes:
        response = self._answers.response(IN_PROGRESS, [])
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=response) for kind in kinds)

    def failed(self, error: HttpError) -> bytes:
        """Return the event of an error: the response has failed, with the items before."""
        output = self._answers.output(self._items.items, COMPLETED)
        response = self._answers.response(FAILED, output, self._usage, error)
        return self._event("response.failed", response=response)

    def end(self) -> bytes:
        """Return the ends of the last item and of the response."""
        assert self._last is not None, "a stream has a last delta"
        status = _status(self._last)
        ended = self._written(list(self._items.finish()), status)
        output = self._answers.output(self._items.items, status)
        response = self._answers.response(status, output, self._usage)
        return ended + self._event(f"response.{status}", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event({"type": kind, "sequence_number": number, **fields})

    def _written(self, found: Sequence[ItemEvent], status: str) -> bytes:
        """Return the events of items. status: of those that end."""
        return b"".join(self._of_item(event, status) for event in found)

    def _of_item(self, event: ItemEvent, status: str) -> bytes:
        match event:
            case Begun(index, item):
                return self._begun(index, item)
            case Grown(index, kind, text):
                return self._grown(index, kind, text)
            case Ended(index, item):
                return self._ended(index, item, status)

    def _place(self, index: int, kind: ItemKind) -> Json:
        place: Json = {"item_id": self._answers.item_id(index, kind), "output_index": index}
        return place if kind is ItemKind.CALL else {**place, "content_index": 0}

    def _begun(self, index: int, item: Item) -> bytes:
        shown = self._answers.item(index, item, IN_PROGRESS)
        added = self._event("response.output_item.added", output_index=index, item=shown)
        if item.kind is ItemKind.CALL:
            return added
        place, part = self._place(index, item.kind), content_part(item.kind, "")
        return added + self._event("response.content_part.added", **place, part=part)

    def _grown(self, index: int, kind: ItemKind, text: str) -> bytes:
        logprobs: Json = {"logprobs": []} if kind is ItemKind.TEXT else {}
        place, delta = self._place(index, kind), f"response.{_GROWTH[kind]}.delta"
        return self._event(delta, **place, delta=text, **logprobs)

    def _ended(self, index: int, item: Item, status: str) -> bytes:
        place, done = self._place(index, item.kind), f"response.{_GROWTH[item.kind]}.done"
        if item.kind is ItemKind.CALL:
            text = self._event(done, **place, name=item.name, arguments=item.text)
        else:
            logprobs: Json = {"logprobs": []} if item.kind is ItemKind.TEXT else {}
            part = content_part(item.kind, item.text)
            text = self._event(done, **place, text=item.text, **logprobs)
            text += self._event("response.content_part.done", **place, part=part)
        shown = self._answers.item(index, item, status)
        return text + self._event("response.output_item.done", output_index=index, item=shown)
