"""The client side of the demo against a scripted server: times, counts, errors, overlap."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muxcluster.core.errors import EngineFailure
from muxcluster.demo.concurrency import Streamed, overlap_s, stream_together
from muxcluster.demo.replay import prompt_of, replay
from muxcluster.demo.workload import Planned
from muxcluster.loadgen.exchange import Target

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)
END = b"0\r\n\r\n"
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def _event(model: str, **fields: Any) -> bytes:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": model, **fields}
    return _chunk(f"data: {json.dumps(chunk)}\n\n".encode())


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class ScriptedServer:
    """Answers every chat with three pieces of text; a model called "bad" is refused."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        lengths = [value for name, value in fields.items() if name.lower() == "content-length"]
        body = json.loads(await reader.readexactly(int(lengths[0])))
        self.bodies.append(body)
        if body["model"] == "bad":
            writer.write(REFUSAL)
        else:
            writer.write(HEAD)
            for text in ("", "a", "b", "c"):
                await asyncio.sleep(0.01)
                choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
                writer.write(_event(body["model"], choices=[choice]))
                await writer.drain()
            writer.write(_event(body["model"], choices=[], usage=USAGE))
            writer.write(_chunk(b"data: [DONE]\n\n") + END)
        await writer.drain()
        writer.close()


def _with_server(work: Callable[[Target], Awaitable[Any]]) -> tuple[Any, ScriptedServer]:
    scripted = ScriptedServer()

    async def run() -> Any:
        server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await work(Target("127.0.0.1", port))

    return asyncio.run(run()), scripted


def test_each_request_is_sent_at_its_time_and_measured() -> None:
    planned = [Planned(0.0, "a", 9, 3), Planned(0.1, "b", 6, 3)]
    samples, server = _with_server(lambda target: replay(target, planned, ["one", "two"]))
    assert [sample.model for sample in samples] == ["a", "b"]
    assert samples[1].start_s - samples[0].start_s >= 0.09
    for sample in samples:
        assert (sample.prompt_tokens, sample.output_tokens, sample.error) == (7, 3, None)
        # The first piece is empty and does not count as text.
        assert 0.015 < sample.ttft_s < sample.end_s - sample.start_s
        assert sample.tpot_s is not None and sample.tpot_s > 0
    assert [body["max_tokens"] for body in server.bodies] == [3, 3]
    assert all(body["ignore_eos"] and body["stream"] for body in server.bodies)


def test_a_refusal_is_a_sample_and_stops_nobody() -> None:
    planned = [Planned(0.0, "bad", 9, 3), Planned(0.0, "a", 9, 3)]
    samples, _ = _with_server(lambda target: replay(target, planned, ["one"]))
    assert samples[0].error is not None and samples[1].error is None


def test_streams_asked_together_overlap() -> None:
    streams, _ = _with_server(lambda target: stream_together(target, ["a", "b", "c"], 3))
    assert [stream.text for stream in streams] == ["abc"] * 3
    assert overlap_s(streams) > 0


def test_a_model_that_does_not_answer_is_named() -> None:
    with pytest.raises(EngineFailure, match="bad did not answer: HTTP/1.1 400"):
        _with_server(lambda target: stream_together(target, ["a", "bad"], 3))


def test_streams_one_after_another_do_not_overlap() -> None:
    streams = [Streamed("a", 0.0, 1.0, ""), Streamed("b", 1.5, 2.0, "")]
    assert overlap_s(streams) == pytest.approx(-0.5)


def test_prompts_have_about_the_asked_length_and_differ() -> None:
    words = [f"w{index}" for index in range(1000)]
    first, second = prompt_of(words, 0, 60), prompt_of(words, 1, 60)
    assert len(first.split()) == len(second.split()) == 40 and first != second
    assert prompt_of(words, 5, 1)
