"""The ingress's own HTTP port, so that no proxy stands between a client and its stream."""

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server.connection import HeadLimits, limited_protocol
from muxcluster.http.server.connections import OpenConnections, fitting
from muxcluster.http.server.handover import TAKEN_S, take_no_more
from muxcluster.http.server.tls import MOST_GREETINGS, Greeter, TlsServer
from muxcluster.http.settings import ConnectionLimits

logger = logging.getLogger(__name__)

BACKLOG = 4096
BIND_TIMEOUT_S = 15.0  # how long a replica that replaces another waits for the port it leaves
KEEP_ALIVE_S = 65  # longer than the minute for which common load balancers keep idle connections
CLOSE_S = 1
# How long a connection may be idle once its port is left to others. The next request may be on its
# way: a client that does not know of the change takes the connection for open.
IDLE_S = 3.0
LEAVE_POLL_S = 0.05
_CLOSING = (b"connection", b"close")


class Listener:
    """Serves an ASGI application on `address`, on the event loop that calls `start`.

    Does not run the application's lifespan. parser: as for `limited_protocol`. tls: None for plain
    HTTP. connections: of this address alone. num_ports: of this process, which have its open files.
    """

    def __init__(
        self,
        address: HttpAddress,
        limits: HeadLimits | None = None,
        parser: str = "auto",
        tls: TlsFiles | None = None,
        connections: ConnectionLimits | None = None,
        num_ports: int = 1,
    ) -> None:
        self._address = address
        self._limits = limits or HeadLimits()
        self._parser = parser
        self._tls = tls
        self._connection_limits = connections or ConnectionLimits()
        self._num_handshakes = 0 if tls is None else MOST_GREETINGS * num_ports
        self._bound: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, *, is_beside: bool = False) -> None:
        """Listen.

        is_beside: a process of this user that this one replaces may listen there too. Raises
        EngineFailure if the port does not become free, or the certificate cannot be used.
        """
        bound = self._bound = await _bind(self._address, is_beside=is_beside)
        limits = fitting(self._connection_limits, self._num_handshakes)
        connections = OpenConnections(limits, is_tls=self._tls is not None)
        config = uvicorn.Config(
            app,
            http=limited_protocol(self._limits, connections, self._parser),
            lifespan="off",
            ws="none",
            log_config=None,
            # uvicorn's warnings are about what clients send: one of them could fill the log
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSE_S,
        )
        self._server = self._made(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            bound.close()
            cause = self._task.exception()
            raise EngineFailure(f"the HTTP server did not start: {cause}") from cause

    def _made(self, config: uvicorn.Config) -> uvicorn.Server:
        if self._tls is None:
            return uvicorn.Server(config)
        return TlsServer(config, self._tls, self._limits.on_refused)

    async def leave(self, timeout_s: float) -> None:
        """Take no more connections, answer on open ones for at most `timeout_s` s, and close."""
        server = self._server
        if server is None or self._task is None or self._bound is None:
            return
        take_no_more(self._bound)
        await asyncio.sleep(TAKEN_S)
        for listening in server.servers:
            if isinstance(listening, Greeter):
                listening.stop_listening()
            else:
                listening.close()
        await _let_go(server, time.monotonic() + timeout_s)
        await self.close()

    async def close(self) -> None:
        """Stop listening and cut open streams. Idempotent."""
        task, self._task = self._task, None
        if task is not None and self._server is not None:
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _let_go(server: uvicorn.Server, deadline_s: float) -> None:
    """Wait until the connections of a server that no longer listens are closed, or the deadline.

    Further answers say that their connection closes, and one that is idle closes after `IDLE_S`: a
    request is never lost because its connection closed the moment the answer before it ended.
    """
    state, config = server.server_state, server.config
    config.encoded_headers = [*config.encoded_headers, _CLOSING]  # uvicorn renews those of `state`
    state.default_headers = [*state.default_headers, _CLOSING]
    connections: list[Any] = list(state.connections)
    for each in connections:
        each.timeout_keep_alive = IDLE_S  # from the end of the answer that is under way
    idle = [(each, each.cycle) for each in connections if _is_idle(each.cycle)]
    await asyncio.sleep(IDLE_S)
    for each, cycle in idle:
        if each.cycle is cycle:
            each.shutdown()
    while state.connections and time.monotonic() < deadline_s:
        await asyncio.sleep(LEAVE_POLL_S)


def _is_idle(cycle: Any) -> bool:
    """Return whether a connection with this newest request, None before the first, has answered."""
    return cycle is None or bool(cycle.response_complete)


async def _bind(address: HttpAddress, *, is_beside: bool) -> socket.socket:
    """Return a socket bound to `address`, where another process may listen only if `is_beside`."""
    deadline = asyncio.get_running_loop().time() + BIND_TIMEOUT_S
    while True:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if not is_beside:
                _check_free(family, address)
            # so that another process can listen beside this one, once it replaces this one
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind((address.host, address.port))
        except OSError as error:
            bound.close()
            if asyncio.get_running_loop().time() > deadline:
                raise EngineFailure(
                    f"cannot listen on {address.host}:{address.port}: {error.strerror}"
                ) from error
            await asyncio.sleep(0.1)
        else:
            return bound


def _check_free(family: socket.AddressFamily, address: HttpAddress) -> None:
    """Raise OSError if another process listens at `address`, even one that would share it."""
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))
