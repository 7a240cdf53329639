"""Response objects of the two generation routes, as plain dicts."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from muxcluster.http.answers.logprobs import chat_logprobs, completion_logprobs
from muxcluster.http.answers.message import part_delta, whole_message
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta, PlacedLogprob

Json = dict[str, Any]


class Wire(Protocol):
    """The response format of one route."""

    def envelope(self, *, streamed: bool) -> Json:
        """Return the fields around `choices`."""
        ...

    def chunks(self, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield entries of `choices` for a stream, one event each."""
        ...

    def choice(self, deltas: Sequence[ChoiceDelta]) -> Json:
        """Return the entry of `choices` for a whole choice."""
        ...


def _gathered(deltas: Sequence[ChoiceDelta]) -> tuple[str, list[PlacedLogprob], ChoiceDelta]:
    """Return text and logprobs of a choice, and its last delta."""
    text = "".join(delta.text for delta in deltas)
    return text, [item for delta in deltas for item in delta.logprobs], deltas[-1]


class CompletionWire:
    """Writes `text_completion` objects."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._created = int(time.time())

    def envelope(self, *, streamed: bool) -> Json:
        return {
            "id": self._call.call_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._call.model.served.name,
        }

    def chunks(self, delta: ChoiceDelta) -> Iterator[Json]:
        if delta.text or delta.logprobs or delta.finish_reason:
            yield self.choice([delta])

    def choice(self, deltas: Sequence[ChoiceDelta]) -> Json:
        text, placed, last = _gathered(deltas)
        wanted = self._call.sampling.logprobs is not None
        tokenizer = self._call.model.tokenizer
        return {
            "index": last.index,
            "text": text,
            "logprobs": completion_logprobs(tokenizer, placed) if wanted else None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }


class ChatWire:
    """Writes `chat.completion` and `chat.completion.chunk` objects."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._created = int(time.time())
        self._opened: set[int] = set()

    def envelope(self, *, streamed: bool) -> Json:
        return {
            "id": self._call.call_id,
            "object": "chat.completion.chunk" if streamed else "chat.completion",
            "created": self._created,
            "model": self._call.model.served.name,
        }

    def chunks(self, delta: ChoiceDelta) -> Iterator[Json]:
        if delta.index not in self._opened:
            self._opened.add(delta.index)
            yield self._chunk(ChoiceDelta(delta.index), {"role": "assistant", "content": ""})
        if delta.parts:
            yield from self._parts(delta)
        elif delta.text or delta.logprobs:
            yield self._chunk(delta, {"content": delta.text})
        elif delta.finish_reason:
            yield self._chunk(delta, {})

    def _parts(self, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield an entry for each part; the last has the logprobs and the end, if there are any."""
        contents = [content for part in delta.parts if (content := part_delta(part))]
        for content in contents[:-1]:
            yield self._chunk(ChoiceDelta(delta.index), content)
        if contents or delta.logprobs or delta.finish_reason:
            yield self._chunk(delta, contents[-1] if contents else {})

    def _chunk(self, delta: ChoiceDelta, content: Json) -> Json:
        return {
            "index": delta.index,
            "delta": content,
            "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def choice(self, deltas: Sequence[ChoiceDelta]) -> Json:
        text, placed, last = _gathered(deltas)
        if any(delta.parts for delta in deltas):
            message = whole_message(deltas)
        else:
            message = {"role": "assistant", "content": text, "refusal": None}
        return {
            "index": last.index,
            "message": message,
            "logprobs": self._logprobs(placed),
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }

    def _logprobs(self, placed: Sequence[PlacedLogprob]) -> Json | None:
        if self._call.sampling.logprobs is None:
            return None
        return chat_logprobs(self._call.model.tokenizer, placed)
