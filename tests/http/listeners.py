"""Real listeners on an event loop of their own, and raw bytes to and from them."""

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.listener import Listener
from muxcluster.http.settings import ConnectionLimits

PATIENCE_S = 60.0
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CLOSING = GET + b"Connection: close\r\n\r\n"

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@contextmanager
def listening(
    app: ASGIApp,
    limits: HeadLimits | None = None,
    parser: str = "auto",
    tls: TlsFiles | None = None,
    connections: ConnectionLimits | None = None,
    new_loop: NewLoop = asyncio.new_event_loop,
) -> Iterator[int]:
    """The port of a listener on a loop in a thread of its own."""
    port = free_port()
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        listener = Listener(HttpAddress("127.0.0.1", port), limits, parser, tls, connections)
        await listener.start(app)
        started.set()
        while not stop.is_set():
            await asyncio.sleep(0.01)
        await listener.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(PATIENCE_S)
    try:
        yield port
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def connected(port: int, tls: ssl.SSLContext | None = None) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")


def received(client: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def exchange(port: int, *parts: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """All that comes after these parts, until the server closes."""
    with connected(port, tls) as client:
        try:
            for part in parts:
                client.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered before it read all
        return received(client)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def statuses_of(answers: bytes) -> list[int]:
    """Of each response in what a connection received."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]
