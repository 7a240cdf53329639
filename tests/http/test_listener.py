"""The ingress's own port: it answers, waits for a port that is left, and gives it up at the end."""

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Callable, Coroutine

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server import listener
from muxcluster.http.server.listener import Listener


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


APP = Starlette(routes=[Route("/", hello)])


def taken_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_it_waits_for_the_port_answers_and_gives_it_up() -> None:
    taken = taken_port()
    port = taken.getsockname()[1]

    async def scenario() -> None:
        server = Listener(HttpAddress("127.0.0.1", port))
        threading.Timer(0.2, taken.close).start()
        await server.start(APP)
        assert await asyncio.to_thread(get, port) == "hello"
        await server.close()
        await server.close()
        with pytest.raises(OSError):
            await asyncio.to_thread(get, port)

    # uvicorn takes over signal handlers in a main thread; a replica's loop is not in one
    outcome = Outcome(scenario)
    thread = threading.Thread(target=outcome)
    thread.start()
    thread.join()
    outcome.check()


class Outcome:
    """Runs a scenario on a loop in another thread and brings its error back."""

    def __init__(self, scenario: Callable[[], Coroutine[None, None, None]]) -> None:
        self._scenario = scenario
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            asyncio.run(self._scenario())
        except BaseException as error:  # noqa: BLE001 - raised again by `check`
            self._error = error

    def check(self) -> None:
        """Raises what the scenario raised."""
        if self._error is not None:
            raise self._error


def test_a_port_that_stays_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BIND_TIMEOUT_S", 0.0)
    with taken_port() as taken, pytest.raises(EngineFailure, match="cannot listen on 127.0.0.1"):
        asyncio.run(Listener(HttpAddress("127.0.0.1", taken.getsockname()[1])).start(APP))
