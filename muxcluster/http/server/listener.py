"""The ingress's own HTTP port, so that no proxy stands between a client and its stream."""

import asyncio
import contextlib
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.tls_files import TlsFiles
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server.connection import HeadLimits, limited_protocol
from muxcluster.http.server.connections import OpenConnections, fitting
from muxcluster.http.server.tls import MOST_GREETINGS, TlsServer
from muxcluster.http.settings import ConnectionLimits

logger = logging.getLogger(__name__)

BACKLOG = 4096
BIND_TIMEOUT_S = 15.0  # how long a replica that replaces another waits for the port it leaves
KEEP_ALIVE_S = 65  # longer than the minute for which common load balancers keep idle connections
CLOSE_S = 1


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
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp) -> None:
        """Listen.

        Raises EngineFailure if the port does not become free, or the certificate cannot be used.
        """
        bound = await _bind(self._address)
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

    async def close(self) -> None:
        """Stop listening and cut open streams. Idempotent."""
        task, self._task = self._task, None
        if task is not None and self._server is not None:
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _bind(address: HttpAddress) -> socket.socket:
    deadline = asyncio.get_running_loop().time() + BIND_TIMEOUT_S
    while True:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
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
