"""Response objects of the two generation routes, as plain dicts."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from muxcluster.http.answers.logprobs import chat_logprobs, completion_logprobs, labels
from muxcluster.http.answers.message import part_delta, whole_message
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta, PlacedLogprob

Json = dict[str, Any]


class Wire(Protocol):
    """The response format of one route."""

    def envelope(self, *, streamed: bool) -> Json:
        """Return the fields around `choices`."""
        ...

    def opening(self) -> Json:
        """Return fields that only the first event of a stream has around `choices`."""
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


def _token_ids(call: Call, deltas: Sequence[ChoiceDelta]) -> Json:
    """Return the tokens of a choice, if the request wants them."""
    if not call.returns_token_ids:
        return {}
    return {"token_ids": [token for delta in deltas for token in delta.tokens]}


def _prompt_token_ids(call: Call, index: int) -> Json:
    """Return the prompt's tokens of a choice, if the request wants them."""
    if not call.returns_token_ids:
        return {}
    return {"prompt_token_ids": call.prompt_of(index).tokens.tolist()}


def _has_more(call: Call, delta: ChoiceDelta) -> bool:
    """True if a delta has something to tell beside its text."""
    has_ids = call.returns_token_ids and bool(delta.tokens)
    return bool(delta.logprobs or delta.finish_reason or has_ids)


class CompletionWire:
    """Writes `text_completion` objects."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._created = int(time.time())
        self._opened: set[int] = set()

    def opening(self) -> Json:
        return {}

    def envelope(self, *, streamed: bool) -> Json:
        return {
            "id": self._call.call_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._call.model.served.name,
        }

    def chunks(self, delta: ChoiceDelta) -> Iterator[Json]:
        if delta.text or _has_more(self._call, delta):
            is_first = delta.index not in self._opened
            self._opened.add(delta.index)
            yield self.choice([delta]) if is_first else self._entry([delta])

    def choice(self, deltas: Sequence[ChoiceDelta]) -> Json:
        return self._entry(deltas) | _prompt_token_ids(self._call, deltas[-1].index)

    def _entry(self, deltas: Sequence[ChoiceDelta]) -> Json:
        text, placed, last = _gathered(deltas)
        wanted = self._call.sampling.logprobs is not None
        label = labels(self._call.model.tokenizer, by_id=self._call.labels_tokens_by_id)
        return {
            "index": last.index,
            "text": text,
            "logprobs": completion_logprobs(label, placed) if wanted else None,
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
            **_token_ids(self._call, deltas),
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
            **({} if streamed else self.opening()),
        }

    def opening(self) -> Json:
        return _prompt_token_ids(self._call, 0)

    def chunks(self, delta: ChoiceDelta) -> Iterator[Json]:
        if delta.index not in self._opened:
            self._opened.add(delta.index)
            yield self._chunk(ChoiceDelta(delta.index), {"role": "assistant", "content": ""})
        if delta.parts:
            yield from self._parts(delta)
        elif delta.text or delta.logprobs:
            yield self._chunk(delta, {"content": delta.text})
        elif _has_more(self._call, delta):
            yield self._chunk(delta, {})

    def _parts(self, delta: ChoiceDelta) -> Iterator[Json]:
        """Yield an entry for each part; the last has logprobs, tokens and the end, if any."""
        contents = [content for part in delta.parts if (content := part_delta(part))]
        for content in contents[:-1]:
            yield self._chunk(ChoiceDelta(delta.index), content)
        if contents or _has_more(self._call, delta):
            yield self._chunk(delta, contents[-1] if contents else {})

    def _chunk(self, delta: ChoiceDelta, content: Json) -> Json:
        return {
            "index": delta.index,
            "delta": content,
            "logprobs": self._logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            **_token_ids(self._call, [delta]),
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
            **_token_ids(self._call, deltas),
        }

    def _logprobs(self, placed: Sequence[PlacedLogprob]) -> Json | None:
        if self._call.sampling.logprobs is None:
            return None
        by_id = self._call.labels_tokens_by_id
        return chat_logprobs(self._call.model.tokenizer, placed, by_id=by_id)
