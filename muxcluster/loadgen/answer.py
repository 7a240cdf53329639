"""Parsing of raw bytes to one request's outcome: HTTP head, chunks, server-sent events, usage."""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from muxcluster.loadgen.exchange import Received

_DATA = b"data: "
_END_MARK = b"data: [DONE]"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One streamed answer. Times are seconds on time.perf_counter."""

    start_s: float
    event_times_s: tuple[float, ...] = ()  # arrival of each event that carried output
    text: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_reads: int = 0  # socket reads that brought the answer
    finish_reason: str | None = None
    error: str = ""  # empty if the stream was complete, with its `[DONE]`

    @property
    def is_complete(self) -> bool:
        """Whether the whole stream was received."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Start to first output."""
        return self.event_times_s[0] - self.start_s

    @property
    def latency_s(self) -> float:
        """Start to last output."""
        return self.event_times_s[-1] - self.start_s


def answer_of(received: Received) -> Answer:
    """Parse `received`; never raises: errors are in `error`."""
    if received.error or not received.pieces:
        error = received.error or "the server closed without an answer"
        return Answer(received.start_s, error=error)
    data = b"".join(piece for _, piece in received.pieces)
    head, separator, _ = data.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not separator or status != [b"200"]:
        return Answer(received.start_s, error=_first_line(head) + _body_of(data, len(head)))
    try:
        return _streamed(received, data, len(head) + 4)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Answer(received.start_s, error=f"not a stream of events: {error}")


def _first_line(head: bytes) -> str:
    return head.split(b"\r\n", 1)[0].decode(errors="replace")


def _body_of(data: bytes, head_length: int) -> str:
    body = data[head_length + 4 :].strip()[:300]
    return f": {body.decode(errors='replace')}" if body else ""


def _streamed(received: Received, data: bytes, start: int) -> Answer:
    """Parse a stream. Raises one of the errors that `answer_of` catches if `data` is no stream."""
    times, texts = [], []
    usage: Mapping[str, Any] = {}
    finish_reason, has_end, error = None, False, ""
    for time_s, line in _events(received.pieces, data, start):
        if line == _END_MARK:
            has_end = True
            continue
        if not line.startswith(_DATA):
            continue
        event = json.loads(line[len(_DATA) :])
        if "error" in event:
            error = json.dumps(event["error"])
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            text = _text_of(choice)
            finish_reason = choice.get("finish_reason") or finish_reason
            if text:
                texts.append(text)
                times.append(time_s)
    if not error and not (has_end and times):
        error = "the stream was cut" if times else "the stream was empty"
    return Answer(
        received.start_s,
        tuple(times),
        "".join(texts),
        int(usage.get("prompt_tokens", 0)),
        int(usage.get("completion_tokens", 0)) or len(times),
        len(received.pieces),
        finish_reason,
        error,
    )


def _text_of(choice: Mapping[str, Any]) -> str | None:
    """Return the new text of a choice; reasoning counts like the answer that it precedes."""
    delta = choice.get("delta")
    found = choice.get("text") if delta is None else delta.get("content")
    text: str | None = found or (delta or {}).get("reasoning_content")
    return text


def _events(
    pieces: Sequence[tuple[float, bytes]], data: bytes, start: int
) -> Iterator[tuple[float, bytes]]:
    """Yield (arrival, event) of every complete event; an event arrives with its last byte."""
    ends = list(accumulate(len(piece) for _, piece in pieces))
    rest = b""
    for end, body in _chunks(data, start):
        time_s = pieces[bisect_left(ends, end)][0]
        *whole, rest = (rest + body).split(b"\n\n")
        for event in whole:
            yield time_s, event


def _chunks(data: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of its end in `data`, body) of each complete chunk of a chunked body."""
    while True:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return
        size = int(data[position:line_end].split(b";")[0], 16)
        begin, end = line_end + 2, line_end + 2 + size
        if size == 0 or end > len(data):
            return
        yield end, data[begin:end]
        position = end + 2
