"""The ingress's own HTTP port, so that no proxy stands between a client and its stream."""

import asyncio
import contextlib
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server.connection import HeadLimits, limited_protocol

logger = logging.getLogger(__name__)

BACKLOG = 4096
BIND_TIMEOUT_S = 15.0  # how long a replica that replaces another waits for the port it leaves
KEEP_ALIVE_S = 65  # longer than the minute for which common load balancers keep idle connections
CLOSE_S = 1


class Listener:
    """Serves an ASGI application on `address`, on the event loop that calls `start`.

    Does not run the application's lifespan. parser: as for `limited_protocol`.
    """

    def __init__(
        self, address: HttpAddress, limits: HeadLimits | None = None, parser: str = "auto"
    ) -> None:
        self._address = address
        self._protocol = limited_protocol(limits or HeadLimits(), parser)
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp) -> None:
        """Listen. Raises EngineFailure if the port does not become free."""
        bound = await _bind(self._address)
        config = uvicorn.Config(
            app,
            http=self._protocol,
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
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            bound.close()
            raise EngineFailure("the HTTP server did not start") from self._task.exception()

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
