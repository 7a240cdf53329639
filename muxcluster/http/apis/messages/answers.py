"""Writes chat outputs as messages and events of the Messages API."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

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
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import TOOL_CALLS, ChoiceDelta
from muxcluster.http.errors import MESSAGES, HttpError

_STOP_REASONS = {FinishReason.LENGTH.value: "max_tokens", TOOL_CALLS: "tool_use"}


@dataclass(frozen=True, slots=True)
class MessageAnswers:
    """The answer to one Messages request."""

    call: Call

    async def whole(self, deltas: Deltas) -> Json:
        found = await collected(deltas)
        usage = UsageTally(self.call)
        for delta in found:
            usage.add(delta)
        items = whole_items(found, keeps_cut_calls=False)
        return {
            **_envelope(self.call),
            "content": [_block(item) for item in items],
            **_end(found[-1]),
            "usage": _usage(usage),
        }

    def writer(self) -> EventWriter:
        return _MessageWriter(self.call)


def _envelope(call: Call) -> Json:
    return {
        "id": f"msg_{call.call_id.removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": call.model.served.name,
    }


def _block(item: Item) -> Json:
    """Return the content block of a whole item."""
    match item.kind:
        case ItemKind.TEXT:
            return {"type": "text", "text": item.text}
        case ItemKind.REASONING:
            return {"type": "thinking", "thinking": item.text, "signature": ""}
        case ItemKind.CALL:
            # JSON already, which Python might read as numbers or text that cannot be written
            return _tool_use(item, msgspec.Raw(item.text.encode()) if item.text else {})


def _tool_use(item: Item, arguments: object) -> Json:
    return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": arguments}


def _end(last: ChoiceDelta) -> Json:
    """Return why the output ended. A stop sequence is named, also where it ends calls."""
    stopped_by = last.stop_reason if isinstance(last.stop_reason, str) else None
    reason = "end_turn" if stopped_by is None else "stop_sequence"
    return {
        "stop_reason": _STOP_REASONS.get(last.finish_reason or "", reason),
        "stop_sequence": stopped_by,
    }


def _usage(usage: UsageTally) -> Json:
    """Return the tokens so far; those from the prefix cache are counted apart, as the API does."""
    counts = usage.counts()
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.output,
        **usage.timing(),
    }


class _MessageWriter:
    """Writes the events of one message."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._usage = UsageTally(call)
        self._items = ItemStream()
        self._last: ChoiceDelta | None = None

    def write(self, delta: ChoiceDelta) -> bytes:
        """Return the events of one delta, the start of the message before the first."""
        self._usage.add(delta)
        begin = b"" if self._last is not None else self._begin()
        self._last = delta
        found = [event for part in parts_of(delta) for event in self._items.push(part)]
        return begin + self._written(found)

    def _begin(self) -> bytes:
        message = {
            **_envelope(self._call),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._usage),
        }
        return named_event({"type": "message_start", "message": message})

    def _written(self, found: Sequence[ItemEvent]) -> bytes:
        return b"".join(named_event(_content_event(event)) for event in found)

    def failed(self, error: HttpError) -> bytes:
        """Return the event of an error."""
        return b"event: error\ndata: " + error.body(MESSAGES) + b"\n\n"

    def end(self) -> bytes:
        """Return the ends of the last block and of the message."""
        assert self._last is not None, "a stream has a last delta"
        change = {
            "type": "message_delta",
            "delta": _end(self._last),
            "usage": _usage(self._usage),
        }
        last = named_event(change) + named_event({"type": "message_stop"})
        return self._written(list(self._items.finish())) + last


def _content_event(event: ItemEvent) -> Json:
    match event:
        case Begun(index, item):
            block = _tool_use(item, {}) if item.kind is ItemKind.CALL else _block(item)
            return {"type": "content_block_start", "index": index, "content_block": block}
        case Grown(index, kind, text):
            return {"type": "content_block_delta", "index": index, "delta": _delta(kind, text)}
        case Ended(index, _):
            return {"type": "content_block_stop", "index": index}


def _delta(kind: ItemKind, text: str) -> Json:
    match kind:
        case ItemKind.TEXT:
            return {"type": "text_delta", "text": text}
        case ItemKind.REASONING:
            return {"type": "thinking_delta", "thinking": text}
        case ItemKind.CALL:
            return {"type": "input_json_delta", "partial_json": text}
