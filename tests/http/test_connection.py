"""Heads that are too large, too late or wrong, as raw bytes, to both of uvicorn's parsers."""

import asyncio
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.types import ASGIApp

from muxcluster.cluster.ingress.serve_app import settings_of
from muxcluster.config.load import load_config
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.settings import ApiSettings
from tests.amounts import slow
from tests.http.clusters import Cluster, run

PATIENCE_S = 30.0
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
BODY = json.dumps({"model": "tiny", "prompt": "hello"}).encode()
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


@contextmanager
def listening(app: ASGIApp, limits: HeadLimits, parser: str) -> Iterator[int]:
    """The port of a listener on a loop in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        listener = Listener(HttpAddress("127.0.0.1", port), limits, parser)
        await listener.start(app)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.01)
        await listener.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield port
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@pytest.fixture(params=["httptools", *slow("h11")])
def parser(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture
def statuses() -> list[int]:
    """Of the listener's own refusals."""
    return []


@pytest.fixture
def port(backend: Any, says: Any, parser: str, statuses: list[int]) -> Iterator[int]:
    says("hello")
    app = create_app(backend, ApiSettings(api_key="secret"))
    limits = HeadLimits(timeout_s=600.0, on_refused=statuses.append)
    with listening(app, limits, parser) as number:
        yield number


@pytest.fixture
def hasty(backend: Any, says: Any, parser: str) -> Iterator[int]:
    """Heads have to come within half a second, bodies at 1,000 bytes/s."""
    says("hello")
    settings = ApiSettings(min_body_bytes_per_s=1000, body_window_s=0.5)
    with listening(create_app(backend, settings), HeadLimits(timeout_s=0.5), parser) as number:
        yield number


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def received(client: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def wait_for(found: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def one_response(client: socket.socket) -> bytes:
    """A response of /health."""
    data = b""
    while not data.endswith(b'{"status":"ok"}'):
        part = client.recv(65536)
        assert part
        data += part
    return data


def exchange(port: int, *parts: bytes) -> bytes:
    with connected(port) as client:
        for part in parts:
            client.sendall(part)
        return received(client)


def error_of(answer: bytes) -> dict[str, Any]:
    """The error in the one response, whose shape is checked."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower() and b"application/json" in head.lower()
    assert b"content-length: %d" % len(body) in head.lower()
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        GET + b"".join(b"X-%d: 1\r\n" % i for i in range(128)) + b"\r\n",
        GET + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(70)) + b"\r\n",
        b"GET /health?" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        GET + b"X: " + b"a" * 100_000,
        GET + b"a" * 100_000,
        b"GET /" + b"a" * 100_000,
    ],
    ids=["a-value", "number", "sum", "target", "unfinished", "name", "unfinished-target"],
)
def test_a_head_over_the_limits_is_431(
    port: int, request_bytes: bytes, statuses: list[int]
) -> None:
    answer = exchange(port, request_bytes)
    assert status_of(answer) == 431
    error = error_of(answer)
    assert error["code"] == "request_head_too_large"
    assert statuses == [431]


def test_a_head_at_the_limits_is_served(port: int) -> None:
    """Host and 127 others; just under 64 KiB."""
    fields = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 480) for i in range(125))
    answer = exchange(port, GET + fields + b"Connection: close\r\nX: 1\r\n\r\n")
    assert status_of(answer) == 200


def test_an_endless_header_is_not_collected(port: int) -> None:
    """The sender is cut off, and the server's memory does not grow with what it sends."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_sent = 0
    with connected(port) as client:
        client.sendall(GET + b"X: ")
        with pytest.raises(OSError):
            while num_sent < 254 * 2**20:
                client.sendall(b"a" * 2**20)
                num_sent += 2**20
    assert num_sent < 64 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10
    assert status_of(exchange(port, GET + b"Connection: close\r\n\r\n")) == 200


def test_others_are_served_meanwhile(port: int) -> None:
    with connected(port) as hostile, connected(port) as other:
        hostile.sendall(GET + b"X: " + b"a" * 60_000)
        other.sendall(GET + b"Connection: close\r\n\r\n")
        assert status_of(received(other)) == 200


@pytest.mark.parametrize("extra", [b"", b";" + b"e" * 100_000])
def test_trailers_and_chunk_extensions_count(port: int, extra: bytes) -> None:
    head = POST.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    head = head.replace(b"Host: x", b"Host: x\r\nAuthorization: Bearer secret")
    if extra:
        answer = exchange(port, head, b"1" + extra)
    else:
        answer = exchange(port, head, b"1\r\n{\r\n0\r\nX: " + b"a" * 100_000)
    assert status_of(answer) == 431


def test_trailers_are_no_headers(port: int) -> None:
    """A key in a trailer opens nothing, although it comes before the request is looked at."""
    head = POST.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    chunk = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n"
    with connected(port) as client:
        client.sendall(head + chunk % (len(BODY), BODY))
        client.settimeout(PATIENCE_S)
        assert client.recv(12) == b"HTTP/1.1 401"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        GET + b"X : 1\r\n\r\n",
        GET + b"X\x00: 1\r\n\r\n",
        POST.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + b"0\r\n\r\n",
        POST.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n") + BODY,
        POST.replace(b"Content-Length: ", b"Content-Length: -") + BODY,
    ],
    ids=range(6),
)
def test_what_is_no_request_is_answered_in_the_error_shape(port: int, request_bytes: bytes) -> None:
    answer = exchange(port, request_bytes)
    assert status_of(answer) == 400
    assert error_of(answer)["type"] == "invalid_request_error"


def test_a_refused_request_waits_for_the_responses_before_it(port: int, backend: Any) -> None:
    """Pipelined behind two that are answered, a head that is too large is told as the third."""
    answer = exchange(port, (GET + b"\r\n") * 2 + GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n")
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 200, 431]


def test_hundreds_of_pipelined_requests_are_answered_in_order(port: int) -> None:
    names = [b"/v1/models/%d" % i for i in range(500)]
    head = b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
    ends = [b"\r\n"] * 499 + [b"Connection: close\r\n\r\n"]
    sent = b"".join(b"GET " + name + head + end for name, end in zip(names, ends, strict=True))
    answer = exchange(port, sent)
    found = [answer.index(b"'%d'" % i) for i in range(500)]
    assert found == sorted(found)


@pytest.mark.parametrize(
    "part", [b"", b"\r\n", b"GET /hea", GET, GET + b"X: 1"], ids=["none", "line", "a", "b", "c"]
)
def test_a_head_that_does_not_come_is_408(hasty: int, part: bytes, parser: str) -> None:
    answer = exchange(hasty, part)
    if part == b"\r\n" and parser == "h11":
        assert status_of(answer) == 400  # a request may not begin so, says h11
        return
    assert status_of(answer) == 408
    assert error_of(answer)["code"] == "request_timeout"


def test_a_head_that_drips_is_408(hasty: int) -> None:
    """Each byte is in time; the head is not."""
    with connected(hasty) as client:
        for byte in GET + b"X: " + b"a" * 400:
            try:
                client.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.01)
        assert status_of(received(client)) == 408


@pytest.mark.parametrize("part", [b"", BODY[:5]], ids=["none", "half"])
def test_a_body_that_does_not_come_is_408(hasty: int, part: bytes) -> None:
    answer = exchange(hasty, POST + part)
    assert status_of(answer) == 408
    assert error_of(answer)["code"] == "request_timeout"


def test_half_a_chunk_is_408(hasty: int) -> None:
    head = POST.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    assert status_of(exchange(hasty, head + b"10\r\n{")) == 408


def test_a_body_that_is_fast_enough_is_served(hasty: int) -> None:
    """It takes three windows at 2,000 bytes a second."""
    body = BODY.ljust(3000)
    head = POST.replace(b": %d" % len(BODY), b": 3000\r\nConnection: close")
    with connected(hasty) as client:
        client.sendall(head)
        for start in range(0, 3000, 100):
            client.sendall(body[start : start + 100])
            time.sleep(0.05)
        assert status_of(received(client)) == 200


def test_a_body_that_was_answered_unread_has_the_time_of_a_head(hasty: int) -> None:
    """The answer came before the body; the connection does not stay open for the rest of it."""
    answer = exchange(hasty, POST.replace(b"/v1/completions", b"/nowhere") + BODY[:5])
    assert status_of(answer) == 404 and answer.count(b"HTTP/1.1") == 1


def test_an_idle_connection_stays_open_between_requests(hasty: int) -> None:
    with connected(hasty) as client:
        for _ in range(2):
            client.sendall(GET + b"\r\n")
            assert one_response(client).startswith(b"HTTP/1.1 200")
            time.sleep(1.0)
        client.sendall(GET[:10])
        assert status_of(received(client)) == 408


def test_a_response_outlives_the_head_behind_it(hasty: int, backend: Any) -> None:
    """Half a request behind a stream is not timed while the stream goes on."""
    backend.delay_s = 0.3
    body = json.dumps({"model": "tiny", "prompt": "hello", "stream": True}).encode()
    head = POST.replace(b": %d" % len(BODY), b": %d" % len(body))
    answer = exchange(hasty, head + body + GET[:10])
    assert b"data: [DONE]" in answer
    assert status_of(answer) == 200 and b"HTTP/1.1 408" in answer.partition(b"[DONE]")[2]


def test_a_client_that_goes_leaves_no_traceback_for_the_requests_behind(
    hasty: int, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of two pipelined requests is being answered, and its answer has nowhere to go."""
    backend.most_deltas = 0
    with connected(hasty) as client:
        client.sendall(POST + BODY + GET + b"\r\n")
        wait_for(lambda: backend.requests)
    wait_for(lambda: backend.aborted)
    assert "Traceback" not in caplog.text and "Exception" not in caplog.text


def test_the_files_limits_reach_the_listener(served: ServedModel, tmp_path: Path) -> None:
    """From muxcluster.yaml through the ingress: answers name the limit that was passed."""
    file = tmp_path / "muxcluster.yaml"
    server = {"header_timeout_s": 0.25, "min_body_bytes_per_s": 1234}
    models = [{"name": "tiny", "shape": "llama-2-7b"}]
    file.write_text(yaml.safe_dump({"models": models, "server": server}))
    settings = replace(settings_of(load_config(file)), body_window_s=0.5)

    async def work(cluster: Cluster) -> None:
        port = int(cluster.url.rpartition(":")[2])
        head = await asyncio.to_thread(exchange, port, GET)
        assert status_of(head) == 408
        assert "within 0.25 s" in error_of(head)["message"]
        body = await asyncio.to_thread(exchange, port, POST)
        assert status_of(body) == 408
        assert "slower than 1234 bytes a second" in error_of(body)["message"]

    run(
        (served,), work, **{field.name: getattr(settings, field.name) for field in fields(settings)}
    )
