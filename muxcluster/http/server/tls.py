"""TLS in front of uvicorn's protocols.

uvicorn limits neither the time of a handshake (asyncio gives it a minute) nor how many there are,
takes a renewed certificate only when it starts, and leaves a client that speaks plain HTTP without
an answer.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn

from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.http.errors import status_error
from muxcluster.http.server.connection import LINGER_BYTES, LINGER_S, response_bytes

logger = logging.getLogger(__name__)

GREETING_S = 10.0  # longest time until a handshake begins, and then until it ends
MOST_GREETINGS = 1024  # handshakes at once; one more ends the oldest
MOST_ACCEPTED = 64  # connections that are accepted before the loop does other things
RETRY_S = 0.2  # after the process has had no free file for a connection
RENEW_PERIOD_S = 5.0  # how soon renewed files are used
BACKLOG = 4096
READ_BYTES = 65_536
TLS_RECORD = b"\x16"  # the first byte of every handshake
PLAIN = status_error(400, "this port speaks HTTPS and was sent plain HTTP: use https://")


class TlsServer(uvicorn.Server):
    """uvicorn's server, whose connections a `Greeter` accepts.

    on_refused: called with the status of each answer to plain HTTP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        files: TlsFiles,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._files = files
        self._on_refused = on_refused

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on `sockets`, which are bound. Raises ConfigError for wrong files."""
        await self.lifespan.startup()
        greeters = [
            Greeter(each, self._new_protocol, self._files, self._on_refused)
            for each in sockets or ()
        ]
        self.servers = greeters  # type: ignore[assignment]
        self.started = True

    def _new_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class Greeter:
    """Accepts the connections of a bound socket and makes their TLS handshakes.

    make_protocol: for each connection with a handshake. It has the methods of asyncio's `Server`
    that uvicorn calls. Must be created on the event loop. Raises ConfigError for wrong files.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        files: TlsFiles,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        self._make_protocol = make_protocol
        self._files = files
        self._on_refused = on_refused
        self._context = files.context()
        self._greetings: dict[asyncio.Task[None], None] = {}  # oldest first
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._retry: asyncio.TimerHandle | None = None
        self._renewal = asyncio.create_task(self._renew())
        self._watch()

    def stop_listening(self) -> None:
        """Accept no more connections; handshakes go on. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def close(self) -> None:
        """Stop listening and end handshakes; connections stay. Idempotent."""
        self.stop_listening()
        for task in (self._renewal, *self._greetings):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing runs any more after `close`."""
        await asyncio.gather(self._renewal, *self._greetings, return_exceptions=True)

    def _watch(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Take connections that wait; the loop calls it when there are some."""
        for _ in range(MOST_ACCEPTED):
            try:
                client, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("no connection is accepted for %g s: %s", RETRY_S, error)
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(RETRY_S, self._watch)
                return
            client.setblocking(False)
            if len(self._greetings) >= MOST_GREETINGS:
                oldest = next(iter(self._greetings))
                del self._greetings[oldest]
                oldest.cancel()
            greeting = asyncio.create_task(self._greet(client))
            self._greetings[greeting] = None
            greeting.add_done_callback(self._forget)

    def _forget(self, greeting: asyncio.Task[None]) -> None:
        self._greetings.pop(greeting, None)

    async def _greet(self, client: socket.socket) -> None:
        """Make one handshake, or answer a client that begins none."""
        is_ours = True
        try:
            async with asyncio.timeout(GREETING_S):
                first = await _first_byte(client)
            if first == TLS_RECORD:
                is_ours = False  # the loop closes it, whatever happens
                await self._loop.connect_accepted_socket(
                    self._make_protocol,
                    client,
                    ssl=self._context,
                    ssl_handshake_timeout=GREETING_S,
                )
            elif first:
                await self._tell_plain(client)
        except OSError:  # a client that is late, leaves, or speaks neither; TimeoutError is one
            return
        finally:
            if is_ours:
                client.close()

    async def _tell_plain(self, client: socket.socket) -> None:
        """Answer, and read what comes: closing at once could lose the answer."""
        if self._on_refused is not None:
            self._on_refused(PLAIN.status)
        async with asyncio.timeout(LINGER_S):
            await self._loop.sock_sendall(client, response_bytes(PLAIN))
            client.shutdown(socket.SHUT_WR)
            num_left = LINGER_BYTES
            while num_left > 0 and (part := await self._loop.sock_recv(client, READ_BYTES)):
                num_left -= len(part)

    async def _renew(self) -> None:
        """Use changed files for new connections; wrong ones change nothing."""
        stamp = self._files.stamp()
        while True:
            await asyncio.sleep(RENEW_PERIOD_S)
            found = self._files.stamp()
            if found == stamp:
                continue
            stamp = found
            try:
                self._context = self._files.context()
            except ConfigError as error:
                logger.warning("the server's certificate stays as it was: %s", error)
            else:
                logger.info("the server has a new certificate")


async def _first_byte(client: socket.socket) -> bytes:
    """Return the first byte that a client sends, without taking it; empty if it sends none."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(client, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(client)
    return client.recv(1, socket.MSG_PEEK)
