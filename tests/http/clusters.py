"""A real ingress over scripted units on real sockets, told what to do by a directory."""

import asyncio
import hashlib
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from openai import AsyncOpenAI
from ray.exceptions import RayActorError

from muxcluster.channel.curve import Door, new_keys
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.cluster.ingress.ingress import Ingress
from muxcluster.core.directory import Directory, UnitAddress
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.request import Request
from muxcluster.core.served import JobRecord, ModelStats, ServedModel, UnitStats
from muxcluster.http.settings import ApiSettings

CLIENT_KEYS = new_keys()
STEP_S = 0.004
PATIENCE_S = 600.0
"""For what must happen, however busy the machine is; below the time limit of a test."""

TOKEN_OF_A = 65
"""Of the tiny tokenizer; the other small letters follow."""


def letter_at(prompt: Sequence[int], position: int) -> int:
    """The model: a letter (0 to 25) that depends on the prompt and the position alone."""
    return hashlib.sha256(f"{list(prompt)} {position}".encode()).digest()[0] % 26


def answer(prompt: Sequence[int], num_tokens: int) -> str:
    """What every undisturbed stream says."""
    return "".join(chr(ord("a") + letter_at(prompt, i)) for i in range(num_tokens))


class ScriptedUnit:
    """A unit without a model behind a real server; every open request gets a token each step.

    It says that it prefills a hundred tokens a second.
    """

    def __init__(self, unit_id: str, models: tuple[str, ...]) -> None:
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.most_tokens = math.inf
        """No stream gets more than these; everything else goes on."""
        self.lives = threading.Event()
        """Cleared: its server hangs, and its connections stay."""
        self.lives.set()
        self._unit_id, self._models = unit_id, models
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Request, int]] = {}
        self._over = threading.Event()
        door = Door("tcp://127.0.0.1:*", CLIENT_KEYS.public)
        self.server = UnitServer(
            door, UnitCalls(self._submit, self._abort, self._stats), stats_s=0.05
        )
        self.address = UnitAddress(unit_id, self.server.start(), self.server.server_key)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        with self._lock:
            return len(self._open)

    @property
    def num_held(self) -> int:
        """Open requests that have all the tokens they may have."""
        with self._lock:
            return sum(done >= self.most_tokens for _, done in self._open.values())

    def close(self) -> None:
        """As a unit that dies."""
        self.lives.set()
        self._over.set()
        self._thread.join()
        self.server.close()

    def _submit(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self._open[request.request_id] = (request, len(request.output_tokens))

    def _abort(self, request_id: str) -> None:
        with self._lock:
            self.aborted.append(request_id)
            self._open.pop(request_id, None)

    def _stats(self) -> UnitStats:
        self.lives.wait()
        models = tuple(ModelStats(name, num_running=self.num_open) for name in self._models)
        jobs = [JobRecord(0, name, "prefill", 0, 1.0, 0.0, 1.0, 1, 100) for name in self._models]
        return UnitStats(self._unit_id, time.monotonic(), 1, 1, models, tuple(jobs))

    def _run(self) -> None:
        while not self._over.wait(STEP_S):
            with self._lock:
                names = [n for n, (_, done) in self._open.items() if done < self.most_tokens]
                deltas = {name: self._step(name) for name in names}
            if deltas:
                self.server.send(deltas)

    def _step(self, name: str) -> TokenDelta:
        request, position = self._open[name]
        self._open[name] = (request, position + 1)
        token = TOKEN_OF_A + letter_at(request.prompt_tokens.tolist(), position)
        end = None
        if position + 1 >= request.sampling.max_tokens:
            end = Finished(name, FinishReason.LENGTH)
            del self._open[name]
        return TokenDelta((token,), finished=end)


class Gone:
    """A method of an actor that is dead."""

    async def remote(self) -> None:
        raise RayActorError


class Controller:
    """Answers as the real one's Serve handle; the test writes its directory, at first none."""

    def __init__(self, models: tuple[ServedModel, ...]) -> None:
        self._start = Directory(models, {}, client_key=CLIENT_KEYS)
        self.now: Directory | None = None
        self.directory = self
        self.status = self.timeline = Gone()

    def change(self, **parts: Any) -> None:
        self.now = replace(self.now or self._start, **parts)

    async def remote(self, known: str | None) -> Directory | None:
        return None if self.now is None or self.now.version == known else self.now


class Cluster:
    """One ingress with HTTP, its controller, and the units that a test starts."""

    def __init__(
        self, ingress: Ingress, controller: Controller, client: AsyncOpenAI, url: str
    ) -> None:
        self.ingress, self.controller, self.client, self.url = ingress, controller, client, url
        self.units: list[ScriptedUnit] = []

    def start(
        self, unit_id: str, *models: str, endpoint: str = "tcp://127.0.0.1:*"
    ) -> ScriptedUnit:
        """A unit, not yet in the directory."""
        self.units.append(ScriptedUnit(unit_id, models))
        return self.units[-1]

    def serve(self, *units: ScriptedUnit, **routes: tuple[str, ...]) -> None:
        """The directory names these units and routes."""
        self.controller.change(units={u.address.unit_id: u.address for u in units}, routes=routes)

    async def text(self, model: str, prompt: str, max_tokens: int = 100) -> str:
        """A stream's whole text."""
        stream = await self.client.completions.create(
            model=model, prompt=prompt, max_tokens=max_tokens, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ready(self) -> None:
        """Until /ready says so."""
        while await self.status("/ready") != 200:
            await asyncio.sleep(0.01)

    async def status(self, path: str) -> int:
        async with httpx.AsyncClient() as http:
            return (await http.get(f"{self.url}{path}")).status_code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(models: tuple[ServedModel, ...], **settings: Any) -> AsyncIterator[Cluster]:
    """An ingress that knows `models` and no unit."""
    address = HttpAddress("127.0.0.1", _free_port())
    controller = Controller(models)
    ingress = Ingress(ApiSettings(**settings), controller, address)
    app = await ingress.__serve_build_asgi_app__()
    url = f"http://{address.host}:{address.port}"
    async with (
        app.router.lifespan_context(app),
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        cluster = Cluster(ingress, controller, client, url)
        try:
            yield cluster
        finally:
            await ingress.__del__()
            for unit in cluster.units:
                unit.close()


def run(
    models: tuple[ServedModel, ...],
    work: Callable[[Cluster], Coroutine[Any, Any, None]],
    **settings: Any,
) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), running(models, **settings) as cluster:
            await work(cluster)

    asyncio.run(main())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


def named(model: ServedModel, *names: str) -> tuple[ServedModel, ...]:
    """The same model under several names."""
    return tuple(replace(model, name=name) for name in names)
