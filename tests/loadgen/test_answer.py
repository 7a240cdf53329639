"""Parsing what came back: however the bytes were cut, and whatever is wrong with them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.loadgen.answer import Answer, answer_of
from muxcluster.loadgen.exchange import Received

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(text: str | None, **fields: object) -> bytes:
    choices = [] if text is None else [{"text": text, "finish_reason": None, "index": 0}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


DONE = b"data: [DONE]\n\n"
USAGE = event(None, usage={"prompt_tokens": 5, "completion_tokens": 9})


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def parsed(pieces: list[bytes]) -> Answer:
    return answer_of(Received(0.0, [(float(i), piece) for i, piece in enumerate(pieces, 1)]))


@given(
    texts=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6),
    groups=st.lists(st.integers(1, 3), min_size=6, max_size=6),
    places=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_cuts_make_no_difference(texts: list[str], groups: list[int], places: list[int]) -> None:
    events = [event(text) for text in texts] + [USAGE, DONE]
    chunks, rest = [], list(events)
    for size in groups:
        chunks.append(b"".join(rest[:size]))
        rest = rest[size:]
    chunks = [data for data in (*chunks, b"".join(rest)) if data]
    data = HEAD + b"".join(map(chunk, chunks)) + END
    answer = parsed(cut(data, places))
    assert answer.is_complete
    assert answer.text == "".join(texts)
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (5, 9)
    assert len(answer.event_times_s) == len(texts)
    assert list(answer.event_times_s) == sorted(answer.event_times_s)


def test_an_event_arrives_with_its_last_byte() -> None:
    first, second = chunk(event("a")), chunk(event("b"))
    pieces = [HEAD + first[:10], first[10:] + second[:-3], second[-3:] + chunk(DONE) + END]
    answer = parsed(pieces)
    assert answer.event_times_s == (2.0, 3.0)
    assert (answer.ttft_s, answer.latency_s, answer.num_reads) == (2.0, 3.0, 3)


def test_chat_deltas_and_the_finish_reason() -> None:
    def delta(content: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"delta": content, "finish_reason": reason}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    thought = delta({"reasoning_content": "hm, "})
    events = (delta({"role": "assistant", "content": ""}), thought, delta({"content": "hi"}))
    data = HEAD + chunk(b"".join(events)) + chunk(delta({}, "length") + DONE) + END
    answer = parsed([data])
    assert (answer.text, answer.finish_reason, answer.num_output_tokens) == ("hm, hi", "length", 2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (HEAD + chunk(event("a")) + END, "cut"),
        (HEAD + chunk(event("a")), "cut"),
        (HEAD + chunk(DONE) + END, "empty"),
        (HEAD + chunk(event("a") + b'data: {"error":{"message":"boom"}}\n\n' + DONE), "boom"),
        (HEAD + b"zz\r\n", "not a stream"),
        (HEAD + chunk(b"data: {nonsense\n\n") + END, "not a stream"),
        (b'HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\n{"full"', '429 Too Many: {"full"'),
        (b"garbage", "garbage"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, error: str) -> None:
    answer = parsed([data])
    assert error in answer.error
    assert not answer.is_complete


def test_nothing_came() -> None:
    assert "without an answer" in answer_of(Received(0.0)).error
    assert answer_of(Received(0.0, error="refused")).error == "refused"
