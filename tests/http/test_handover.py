"""A port that one listener leaves to another: open answers end, and no connection is refused."""

import asyncio
import http.client
import threading
from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from muxcluster.core.errors import EngineFailure
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.http.server import listener
from muxcluster.http.server.listener import Listener
from tests.http.listeners import free_port
from tests.http.test_listener import Outcome

PATIENCE_S = 30.0
NUM_PARTS = 5


@pytest.fixture(autouse=True)
def _short_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "IDLE_S", 0.1)


class Server:
    """An application that says its name, and a stream that waits for `go_on` in its middle."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.go_on = asyncio.Event()
        routes = [Route("/", self._say), Route("/stream", self._stream)]
        self.app = Starlette(routes=routes)

    async def _say(self, request: Request) -> Response:
        return PlainTextResponse(self.name)

    async def _stream(self, request: Request) -> Response:
        return StreamingResponse(self._parts())

    async def _parts(self) -> AsyncGenerator[str, None]:
        yield f"{self.name}0"
        await self.go_on.wait()
        for number in range(1, NUM_PARTS):
            yield f"{self.name}{number}"


def run(scenario: Outcome) -> None:
    """Run it on a loop that is not the main thread's, as a replica's is."""
    thread = threading.Thread(target=scenario)
    thread.start()
    thread.join(2 * PATIENCE_S)
    assert not thread.is_alive()
    scenario.check()


def test_a_stream_ends_at_the_listener_that_left_and_others_begin_at_its_successor() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    async def scenario() -> None:
        old, new = Server("old"), Server("new")
        address = HttpAddress("127.0.0.1", port)
        leaver, follower = Listener(address), Listener(address)
        await leaver.start(old.app)
        async with (
            httpx.AsyncClient(timeout=PATIENCE_S) as client,
            client.stream("GET", f"{url}/stream") as answer,
        ):
            parts = answer.aiter_text()
            text = await anext(parts)
            await follower.start(new.app, is_beside=True)
            leaving = asyncio.create_task(leaver.leave(PATIENCE_S))
            await asyncio.sleep(0.5)
            async with httpx.AsyncClient(timeout=PATIENCE_S) as others:
                said = {(await others.get(url)).text for _ in range(5)}
            assert said == {"new"} and not leaving.done()
            old.go_on.set()
            async for part in parts:
                text += part
            assert text == "".join(f"old{number}" for number in range(NUM_PARTS))
            await leaving
        await follower.close()

    run(Outcome(scenario))


def test_no_request_fails_while_listeners_take_turns() -> None:
    port = free_port()
    address = HttpAddress("127.0.0.1", port)
    over = threading.Event()
    said: list[bytes] = []

    def ask(is_kept: bool) -> None:
        """Ask again and again, on one connection until an answer says that it closes, or each time
        on a new one. An error ends it."""
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        while not over.is_set():
            client.request("GET", "/", headers={} if is_kept else {"Connection": "close"})
            answer = client.getresponse()
            said.append(answer.read())
            if answer.will_close:
                client.close()
        client.close()

    async def until_said(name: bytes) -> None:
        while name not in said:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        current = Listener(address)
        await current.start(Server("0").app)
        asking = [asyncio.create_task(asyncio.to_thread(ask, is_kept)) for is_kept in (True, False)]
        await until_said(b"0")
        for turn in range(1, 4):
            following = Listener(address)
            await following.start(Server(str(turn)).app, is_beside=True)
            await current.leave(PATIENCE_S)
            await until_said(b"%d" % turn)
            current = following
        over.set()
        await asyncio.gather(*asking)
        await current.close()

    run(Outcome(scenario))
    assert set(said) == {b"0", b"1", b"2", b"3"}


def test_an_answer_over_the_limit_is_cut() -> None:
    port = free_port()

    async def scenario() -> None:
        slow = Server("slow")
        server = Listener(HttpAddress("127.0.0.1", port))
        await server.start(slow.app)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            with pytest.raises(httpx.RemoteProtocolError):
                async with client.stream("GET", f"http://127.0.0.1:{port}/stream") as answer:
                    leaving = asyncio.create_task(server.leave(1.0))
                    async for _ in answer.aiter_text():
                        continue
            await leaving

    run(Outcome(scenario))


def test_a_port_is_shared_with_nobody_but_a_predecessor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BIND_TIMEOUT_S", 0.0)
    address = HttpAddress("127.0.0.1", free_port())

    async def scenario() -> None:
        first = Listener(address)
        await first.start(Server("first").app)
        with pytest.raises(EngineFailure, match="cannot listen"):
            await Listener(address).start(Server("second").app)
        await first.close()

    run(Outcome(scenario))
