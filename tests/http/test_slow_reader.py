"""A client that stops reading holds up nobody but itself, and not for ever."""

import asyncio
import socket
from typing import Any

from muxcluster.http.answers import streaming
from muxcluster.http.app import create_app
from muxcluster.http.calls.merge import merge
from muxcluster.http.routes import generation as routes_generation
from muxcluster.http.settings import ApiSettings
from tests.http.fakes import running_server, wait_until


def test_sources_wait_for_the_reader_of_the_merged_stream() -> None:
    made = 0

    async def endless() -> Any:
        nonlocal made
        while True:
            made += 1
            yield made
            await asyncio.sleep(0)

    async def run() -> int:
        merged = merge([endless(), endless()])
        await anext(merged)
        await asyncio.sleep(0.05)
        await merged.aclose()
        return made

    assert asyncio.run(run()) <= 8


def test_a_client_that_does_not_read_is_cut_after_the_time_limit(
    backend: Any, says: Any, monkeypatch: Any
) -> None:
    cuts: list[str] = []

    class Noted(streaming.SlowReader):
        def __init__(self, message: str) -> None:
            super().__init__(message)
            cuts.append(message)

    monkeypatch.setattr(streaming, "SlowReader", Noted)
    monkeypatch.setattr(routes_generation, "READER_GRACE_S", 0.1)
    # more text than the sockets' buffers hold, with logprobs to make each event long
    backend.served[0] = backend.served[0].__class__(
        "tiny", backend.served[0].path, 10**6, backend.served[0].vocab_size, ()
    )
    backend.script = lambda request: [65] * 200_000
    app = create_app(backend, ApiSettings(request_timeout_s=3.0))
    body = b'{"model": "tiny", "prompt": "x", "stream": true, "logprobs": 5, "max_tokens": 200000}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    with running_server(app) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(head + body)
            assert client.recv(12) == b"HTTP/1.1 200"
            assert wait_until(lambda: len(backend.aborted) == 1)
            # the stream stood still: nothing noticed the time limit but the watch on its reader
            assert len(cuts) == 1 and backend.ended == []
        assert wait_until(lambda: app.state.service._metrics.num_live == 0)
