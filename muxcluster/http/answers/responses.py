"""Turns a call's deltas into a whole answer or an event stream."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from muxcluster.core.errors import MuxClusterError
from muxcluster.http.answers.usage import UsageTally
from muxcluster.http.answers.wire import Json, Wire
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.http.errors import HttpError, http_error
from muxcluster.router.token_source import Stream
from muxcluster.text.schemas import StreamOptions

Deltas = Stream[ChoiceDelta]
_MARK = uuid4().hex  # the text of an event from which a frame is made; occurs nowhere else in it


class StreamBroken(Exception):
    """A stream failed after its first event: the connection must be cut, not ended cleanly."""


class EventWriter(Protocol):
    """Writes the server-sent events of one call."""

    def write(self, delta: ChoiceDelta) -> bytes:
        """Return the events of one delta; empty if there are none yet."""
        ...

    def failed(self, error: HttpError) -> bytes:
        """Return the event of an error after others."""
        ...

    def end(self) -> bytes:
        """Return the events after the last delta."""
        ...


class Answers(Protocol):
    """How the answer to one call is written: whole, or as events."""

    async def whole(self, deltas: Deltas) -> Json:
        """Return the response object. Raises what `deltas` raises."""
        ...

    def writer(self) -> EventWriter: ...


async def collected(deltas: Deltas) -> list[ChoiceDelta]:
    """Return all deltas. Raises what `deltas` raises."""
    async with aclosing(deltas):
        return [delta async for delta in deltas]


async def whole(call: Call, deltas: Deltas, wire: Wire) -> Json:
    """Return the response object of a call that does not stream. Raises what `deltas` raises."""
    by_choice: dict[int, list[ChoiceDelta]] = defaultdict(list)
    usage = UsageTally(call)
    async with aclosing(deltas):
        async for delta in deltas:
            by_choice[delta.index].append(delta)
            usage.add(delta)
    choices = [wire.choice(by_choice[index]) for index in sorted(by_choice)]
    return {**wire.envelope(streamed=False), "choices": choices, "usage": usage.value()}


async def events(
    deltas: Deltas, writer: EventWriter, keep: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events of a streamed call.

    keep: keeps what the writer wrote, before its last events leave.

    Errors before the first event are raised as they are, to become HTTP errors; later ones are sent
    as an error event and raised as StreamBroken.
    """
    has_begun = False
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                data = writer.write(delta)
                if data:
                    has_begun = True
                    yield data
        except MuxClusterError as error:
            if not has_begun:
                raise
            yield writer.failed(http_error(error))
            raise StreamBroken(str(error)) from error
    ending = writer.end()
    if keep is not None:
        try:
            await keep()
        except MuxClusterError as error:
            yield writer.failed(http_error(error))
            raise StreamBroken(str(error)) from error
    yield ending


@dataclass(frozen=True, slots=True)
class WireAnswers:
    """Answers of the two routes whose answers have `choices`. options: of a stream."""

    call: Call
    wire: Wire
    options: StreamOptions | None

    async def whole(self, deltas: Deltas) -> Json:
        return await whole(self.call, deltas, self.wire)

    def writer(self) -> EventWriter:
        return _ChunkWriter(self.call, self.wire, self.options or StreamOptions())


class _ChunkWriter:
    """Writes deltas as `data:` lines, with usage if the client asked for it."""

    def __init__(self, call: Call, wire: Wire, options: StreamOptions) -> None:
        self._wire = wire
        self._envelope = wire.envelope(streamed=True)
        self._opening = wire.opening()
        self._has_ids = call.returns_token_ids
        self._usage = UsageTally(call)
        self._counts = bool(options.include_usage) or call.head.wants_timing
        self._counts_always = self._counts and bool(options.continuous_usage_stats)
        self._encoder = msgspec.json.Encoder()
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def write(self, delta: ChoiceDelta) -> bytes:
        """Return the events of one delta, one for each token; empty if there is no text yet."""
        if not delta.pieces:
            return self._write_one(delta)
        last = len(delta.pieces) - 1
        before = delta.num_output_tokens - last
        parts = (
            ChoiceDelta(delta.index, piece, num_output_tokens=before + position)
            for position, piece in enumerate(delta.pieces[:-1])
        )
        data = b"".join(map(self._write_one, parts))
        return data + self._write_one(replace(delta, text=delta.pieces[-1], pieces=()))

    def _write_one(self, delta: ChoiceDelta) -> bytes:
        self._usage.add(delta)
        is_more = delta.logprobs or delta.finish_reason or delta.parts
        is_plain = not (is_more or self._counts_always or self._has_ids)
        frame = self._frames.get(delta.index) if is_plain else None
        if frame is not None:
            return frame[0] + self._encoder.encode(delta.text) + frame[1] if delta.text else b""
        data = b"".join(self._event([choice]) for choice in self._wire.chunks(delta))
        if is_plain and data:
            self._frames[delta.index] = self._frame(delta.index)
        return data

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text of an event that has only text."""
        # Most events differ in their text alone; encoding the rest again would take most of the
        # time.
        (choice,) = self._wire.chunks(ChoiceDelta(index, _MARK))
        before, _, after = self._event([choice]).partition(b'"' + _MARK.encode() + b'"')
        return before, after

    def _event(self, choices: list[Json]) -> bytes:
        event: dict[str, Any] = {**self._envelope, **self._opening, "choices": choices}
        self._opening = {}
        if self._counts:
            event["usage"] = self._usage.value() if self._counts_always else None
        return b"data: " + self._encoder.encode(event) + b"\n\n"

    def failed(self, error: HttpError) -> bytes:
        """Return the event of an error."""
        return b"data: " + error.body() + b"\n\n"

    def end(self) -> bytes:
        """Return the usage event, if any, and the end mark."""
        last = b""
        if self._counts:
            event = {**self._envelope, "choices": [], "usage": self._usage.value()}
            last = b"data: " + self._encoder.encode(event) + b"\n\n"
        return last + b"data: [DONE]\n\n"
