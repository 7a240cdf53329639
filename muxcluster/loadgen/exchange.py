"""One HTTP/1.1 request on its own connection; the answer is stored and parsed later."""

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import cast

from muxcluster.core.inputs.web_url import checked_url


@dataclass(frozen=True, slots=True)
class Target:
    """Server that gets the requests."""

    host: str
    port: int
    path: str = ""  # in front of each request's own, without a trailing slash
    is_secure: bool = False

    @classmethod
    def of(cls, url: str) -> "Target":
        """The target of "http[s]://host[:port][/path]". Raises ConfigError for anything else."""
        parts = checked_url(url)
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        return cls(parts.hostname or "", port, parts.path.rstrip("/"), is_secure)


@dataclass(slots=True, eq=False)
class Received:
    """Raw bytes as they came."""

    start_s: float
    # (seconds on time.perf_counter, bytes)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""  # error of the connection, if any


class _Recorder(asyncio.Protocol):
    """Store received bytes with their times. Parsing waits until the load is over, so that the
    client costs little."""

    def __init__(self, request: bytes, received: Received) -> None:
        self._request = request
        self._received = received
        self._pieces = received.pieces
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's classes
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._received.error = f"the connection broke: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)


def request_bytes(target: Target, path: str, body: bytes, key: str | None = None) -> bytes:
    """Return a POST of JSON that asks the server to close the connection after its answer."""
    lines = [
        f"POST {target.path}{path} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join((*lines, "", "")).encode() + body


async def exchange(target: Target, request: bytes, timeout_s: float) -> Received:
    """Send `request` and read until the server closes; errors are part of the answer."""
    received = Received(time.perf_counter())
    transport = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, protocol = await asyncio.get_running_loop().create_connection(
                lambda: _Recorder(request, received),
                target.host,
                target.port,
                ssl=ssl.create_default_context() if target.is_secure else None,
            )
            await protocol.ended
    except TimeoutError:
        received.error = f"no end within {timeout_s:g} s"
    except OSError as error:
        received.error = f"cannot connect: {error}"
    finally:
        if transport is not None:
            transport.close()
    return received
