"""uvicorn's two HTTP/1.1 protocols with limits on request heads.

uvicorn does not limit the size of a head (with httptools), the time that a client takes to send it,
how long it may read nothing of an answer, and how many connections an address has.
`middleware.Edge` limits the pace of bodies, also behind other servers.
"""

import asyncio
import contextlib
import fcntl
import http
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from muxcluster.core.errors import Unavailable
from muxcluster.http.errors import HttpError, http_error, status_error
from muxcluster.http.server.connections import OpenConnections

try:
    import httptools
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    HAS_HTTPTOOLS = True
except ImportError:  # an optional part of uvicorn, which then uses h11
    HAS_HTTPTOOLS = False
    HttpToolsProtocol = asyncio.Protocol  # type: ignore[assignment,misc]

# received data is parsed in pieces, so that a limit is noticed close to where it is passed
PIECE_BYTES = 8192
MAX_UNPARSED_BYTES = 2**20  # of requests that a client pipelines behind one that is being answered
HEADER_EXTRA_BYTES = 4  # `: ` and the end of the line
# How long a refused client may go on sending before its connection is closed. Closing at once would
# reset the connection, and the client could lose the answer.
LINGER_S = 2.0
LINGER_BYTES = 2**20
# How long a client may read nothing while its unsent answer fills the buffer, or while its
# connection waits for the last of it to be closed. It holds a connection, and no time limit of a
# request ends a whole answer that is ready.
UNREAD_S = 60.0
BAD_REQUEST = status_error(400, "this is not a valid HTTP/1.1 request")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Limits of a request's head: its first line and its headers (trailers count as headers).

    timeout_s: for the whole head, from the start of the connection or, on a reused one, from the
    head's first byte. on_refused: called with the status of each refusal.
    """

    num_bytes: int = 64 * 2**10
    num_headers: int = 128
    timeout_s: float = 10.0
    on_refused: Callable[[int], None] | None = None

    def check(self, num_bytes: int, num_headers: int) -> None:
        """Raise HeadTooLarge for a head over a limit."""
        if num_bytes > self.num_bytes:
            raise HeadTooLarge(f"the request's head is over {self.num_bytes} bytes")
        if num_headers > self.num_headers:
            raise HeadTooLarge(f"the request has more than {self.num_headers} headers")


class HeadTooLarge(Exception):
    """A head is over a limit."""


def head_too_large(error: HeadTooLarge) -> HttpError:
    """Return the answer for `error`."""
    return status_error(431, str(error))


def limited_protocol(
    limits: HeadLimits, connections: OpenConnections, parser: str = "auto"
) -> type[asyncio.Protocol]:
    """Return a class for uvicorn's `http` option.

    connections: those of all of its instances. parser: "httptools", "h11", or "auto" for httptools
    if it is installed.
    """
    is_h11 = parser == "h11" or (parser == "auto" and not HAS_HTTPTOOLS)
    made = LimitedH11 if is_h11 else LimitedHttpTools
    return cast(type[asyncio.Protocol], partial(made, limits, connections))


class Cycle(Protocol):
    """The members that both of uvicorn's `RequestResponseCycle` classes have."""

    response_started: bool
    response_complete: bool
    disconnected: bool
    message_event: asyncio.Event


class Guard:
    """Ends one connection if its client is late or is refused.

    newest: returns the connection's newest request, None before the first. connections: this one is
    refused at once where it has no place among them.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: HeadLimits,
        newest: Callable[[], Cycle | None],
        connections: OpenConnections,
    ) -> None:
        self._transport = transport
        self._limits = limits
        self._newest = newest
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_gone = False
        self._is_head_late = True
        self._refusal: HttpError | None = None
        self._num_discarded = 0
        self.is_ending = False  # nothing that the client sends is parsed any more
        try:
            connections.enter(transport)
        except Unavailable as error:
            # closed at once: one that lingers would hold a file of those that are short; but not in
            # this turn of the loop, in which the answer is sent
            self.is_ending = True
            self._write(http_error(error))
            self._later(0.0, partial(connections.cut, transport))
        else:
            self.expect_bytes()

    def close(self) -> None:
        """Note that the connection is gone."""
        self._is_gone = True
        self.have_bytes()
        self._expect_no_reader()
        self._connections.leave(self._transport)

    def begin_request(self) -> None:
        """Note that the head of a request is complete."""
        self.have_bytes()
        self._connections.begin_request(self._transport)

    def cannot_write(self) -> None:
        """Note that the client does not read as fast as it is sent to."""
        self._expect_reader()

    def can_write(self) -> None:
        """Note that the client has read."""
        if not self._transport.is_closing():
            self._expect_no_reader()

    def end(self) -> None:
        """Close the connection when the client has read what is sent."""
        if not self._transport.is_closing():  # asyncio's of TLS may be closed once
            self._transport.close()
        self.closing()

    def closing(self) -> None:
        """Note that the connection is closed when the client has read what is sent."""
        self._expect_reader()

    def expect_bytes(self, *, of_head: bool = True) -> None:
        """Wait for the rest of a head, or of a body that was answered unread.

        The time runs from the first call until `have_bytes`.
        """
        if self._timer is None:
            self._is_head_late = of_head
            self._timer = self._later(self._limits.timeout_s, self._late)

    def have_bytes(self) -> None:
        """Stop waiting: the client has sent what it had to, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_answering(self) -> bool:
        """True while a request is being answered, when nothing else may be written."""
        newest = self._newest()
        return newest is not None and not newest.response_complete

    def answered(self) -> None:
        """Note that a response is complete."""
        if self.is_answering():
            return
        self._connections.end_requests(self._transport)
        if self._refusal is not None:
            self._send(self._refusal)
        elif self._timer is not None and not self.is_ending:
            # until now the client had no reason to hurry
            self.have_bytes()
            self.expect_bytes(of_head=self._is_head_late)

    def refuse(self, error: HttpError, *, in_body: bool = False) -> None:
        """Answer with `error` and close, after the requests that are being answered.

        in_body: the newest request itself is at fault: its body is incomplete.
        """
        self.is_ending = True
        newest = self._newest()
        if not in_body or newest is None or newest.response_complete:
            self._refusal = error
            self.answered()
        elif newest.response_started:
            self.end()
        else:
            # whoever waits for the body learns that there is no client any more
            newest.disconnected = True
            newest.message_event.set()
            self._send(error)

    def discard(self, num_bytes: int) -> None:
        """Drop what a client sends while its connection ends."""
        self._num_discarded += num_bytes
        if self._num_discarded > LINGER_BYTES:
            self.end()

    def _late(self) -> None:
        self._timer = None
        if self.is_answering():
            self.expect_bytes(of_head=self._is_head_late)
        elif self._is_head_late:
            limit_s = self._limits.timeout_s
            self.refuse(status_error(408, f"no complete request head within {limit_s:g} s"))
        else:
            self.end()

    def _send(self, error: HttpError) -> None:
        self.have_bytes()
        if self._transport.is_closing():
            return
        self._write(error)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._later(LINGER_S, self.end)

    def _write(self, error: HttpError) -> None:
        if self._limits.on_refused is not None:
            self._limits.on_refused(error.status)
        self._transport.write(response_bytes(error))

    def _expect_reader(self) -> None:
        if self._write_timer is None and not self._is_gone:
            unread = _unread_bytes(self._transport)
            self._write_timer = self._later(UNREAD_S, partial(self._unread, unread))

    def _expect_no_reader(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _unread(self, before: int) -> None:
        self._write_timer = None
        if _unread_bytes(self._transport) < before:
            self._expect_reader()
        else:
            self._transport.abort()

    def _later(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, work)


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes of answers that the client has not taken, on Linux with the kernel's."""
    num_bytes = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is not None and sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):  # it is gone
            queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
            num_bytes += int.from_bytes(queued, sys.byteorder)
    return num_bytes


class _Closing:
    """uvicorn's transport, which tells when uvicorn closes it: it does so in many places."""

    def __init__(self, transport: asyncio.Transport, on_close: Callable[[], None]) -> None:
        self._transport = transport
        self._on_close = on_close
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
        self._on_close()


def response_bytes(error: HttpError) -> bytes:
    """Return `error` as the last response of a connection."""
    body = error.body()
    phrase = http.HTTPStatus(error.status).phrase
    headers = "".join(f"{name.lower()}: {value}\r\n" for name, value in error.headers.items())
    head = (
        f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{headers}connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


class LimitedHttpTools(HttpToolsProtocol):
    """uvicorn's httptools protocol with `limits`.

    Pipelined requests are parsed one piece at a time: each parsed request takes some kilobytes.
    """

    def __init__(self, limits: HeadLimits, connections: OpenConnections, **arguments: Any) -> None:
        """arguments: uvicorn's."""
        super().__init__(**arguments)
        self._limits = limits
        self._connections = connections
        self._unparsed = b""
        self._is_in_head = False
        self._is_in_body = False
        self._has_message_ended = False
        self._num_bytes = 0
        self._num_headers = 0
        # In pieces that brought neither a head's start or end nor a body's bytes. The parser
        # collects them: an unfinished header, a trailer, a chunk extension.
        self._num_silent_bytes = 0
        self._too_large: HeadTooLarge | None = None
        self._open: list[Cycle] = []  # requests that are not answered yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(Any, _Closing(transport, lambda: self._guard.closing())))
        self._guard = Guard(transport, self._limits, lambda: self.cycle, self._connections)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard.cannot_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guard.can_write()

    def eof_received(self) -> None:
        super().eof_received()
        self._guard.closing()  # by asyncio

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.close()
        # uvicorn tells the newest request only; the answer to another would fail with a traceback
        for cycle in self._open:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._guard.is_ending:
            self._guard.discard(len(data))
            return
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._has_message_ended = False
        self._parse()
        if len(self._unparsed) > MAX_UNPARSED_BYTES:
            self._guard.end()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._guard.answered()
        if self._unparsed and not self.pipeline:
            self._parse()
        self._watch()

    def _watch(self) -> None:
        """Wait for bytes if the client has to send some."""
        if self._guard.is_ending or self.transport.is_closing():
            return
        if self._is_in_body:
            if self.cycle.response_complete:
                self._guard.expect_bytes(of_head=False)
        elif self._is_in_head or not self._has_message_ended:
            self._guard.expect_bytes()

    def _parse(self) -> None:
        data, self._unparsed = self._unparsed, b""
        start = 0
        while start < len(data) and not self._guard.is_ending:
            if self.pipeline:
                self._unparsed = data[start:]
                self.flow.pause_reading()
                return
            self._parse_piece(data[start : start + PIECE_BYTES])
            start += PIECE_BYTES

    def _parse_piece(self, piece: bytes) -> None:
        self._num_silent_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
            self._limits.check(self._num_silent_bytes, 0)
        except httptools.HttpParserUpgrade:
            # No protocol is upgraded to. What follows the head may be of another protocol, so it
            # is not parsed.
            self._guard.is_ending = True
            self.cycle.keep_alive = False
        except HeadTooLarge as error:
            self._guard.refuse(head_too_large(error), in_body=self._is_in_body)
        except httptools.HttpParserError:
            cause = self._too_large
            refusal = BAD_REQUEST if cause is None else head_too_large(cause)
            self._guard.refuse(refusal, in_body=self._is_in_body)

    def _count(self, num_bytes: int, num_headers: int = 0) -> None:
        self._num_bytes += num_bytes
        self._num_headers += num_headers
        try:
            self._limits.check(self._num_bytes, self._num_headers)
        except HeadTooLarge as error:
            # httptools wraps whatever its callbacks raise
            self._too_large = error
            raise

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._num_bytes = self._num_headers = self._num_silent_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + HEADER_EXTRA_BYTES, 1)
        # uvicorn would add trailers to the headers
        if not self._is_in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._open = [cycle for cycle in self._open if not cycle.response_complete]
        self._open.append(self.cycle)
        self._is_in_head, self._is_in_body = False, True
        self._num_silent_bytes = 0
        self._guard.begin_request()

    def on_body(self, body: bytes) -> None:
        self._num_silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._has_message_ended = True
        self._guard.have_bytes()
        super().on_message_complete()


class LimitedH11(H11Protocol):
    """uvicorn's h11 protocol with `limits`."""

    def __init__(self, limits: HeadLimits, connections: OpenConnections, **arguments: Any) -> None:
        """arguments: uvicorn's."""
        super().__init__(**arguments)
        self._limits = limits
        self._connections = connections
        self._parser = self.conn = _LimitedParser(limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(Any, _Closing(transport, lambda: self._guard.closing())))
        self._guard = Guard(transport, self._limits, lambda: self.cycle, self._connections)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard.cannot_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._guard.can_write()

    def eof_received(self) -> None:
        super().eof_received()
        self._guard.closing()  # by asyncio

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._guard.is_ending:
            self._guard.discard(len(data))
        else:
            super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self._guard.is_ending or self.transport.is_closing():
            return
        if self.cycle is not before:
            self._guard.begin_request()
        state = self.conn.their_state
        if state is h11.IDLE and self.conn.trailing_data[0]:
            self._guard.expect_bytes()
        elif state is h11.SEND_BODY and self.cycle.response_complete:
            self._guard.expect_bytes(of_head=False)
        elif state is not h11.IDLE and state is not h11.SEND_BODY:
            self._guard.have_bytes()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._guard.answered()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._guard.expect_bytes(of_head=False)

    def send_400_response(self, msg: str) -> None:
        self._guard.refuse(self._parser.refusal or BAD_REQUEST, in_body=self._parser.is_in_body)

    def shutdown(self) -> None:
        if self._guard.is_ending:
            self._guard.end()
        else:
            super().shutdown()


class _LimitedParser(h11.Connection):
    """h11's parser with `limits`. refusal: the answer to the error that it raised last."""

    def __init__(self, limits: HeadLimits) -> None:
        super().__init__(h11.SERVER, limits.num_bytes)
        self._limits = limits
        self.refusal: HttpError | None = None
        self.is_in_body = False

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                limit = self._limits.num_bytes
                self.refusal = head_too_large(HeadTooLarge(f"a head is over {limit} bytes"))
            raise
        if isinstance(event, h11.Request):
            self._check(event)
            self.is_in_body = True
        elif isinstance(event, h11.EndOfMessage):
            self.is_in_body = False
        return event

    def _check(self, request: h11.Request) -> None:
        sizes = (len(name) + len(value) + HEADER_EXTRA_BYTES for name, value in request.headers)
        try:
            self._limits.check(len(request.target) + sum(sizes), len(request.headers))
        except HeadTooLarge as error:
            self.refusal = head_too_large(error)
            raise h11.RemoteProtocolError(str(error), 431) from error
        names = {name for name, _ in request.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
