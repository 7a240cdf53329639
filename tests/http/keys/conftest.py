"""Two ingresses over one counter of keys, each a real server, with a scripted backend."""

import asyncio
import hashlib
import queue
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml

from muxcluster.cluster.ingress import key_host
from muxcluster.cluster.ingress.key_host import KeyHost
from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.keys import KeySettings
from muxcluster.tenants.limiter import DAY_S, Instant
from muxcluster.tenants.messages import Ask, Grant, KeyService
from tests.http.fakes import FakeBackend, wait_until

ADMIN = "admin-secret"
_TLS = ssl.create_default_context()  # unused, but each client would make one
NOON = 20_000 * DAY_S + DAY_S / 2


def entry(name: str, **rest: Any) -> dict[str, Any]:
    """A key of a keys file; its secret is its name with `-secret`."""
    return {"name": name, "sha256": hashlib.sha256(f"{name}-secret".encode()).hexdigest(), **rest}


def write(file: Path, *entries: dict[str, Any]) -> None:
    """Put another file in the place of `file`, as careful operators and Kubernetes do."""
    part = file.with_suffix(".part")
    part.write_text(yaml.safe_dump({"keys": [*entries, entry("admin", admin=True)]}))
    part.replace(file)


class Clock:
    """Stands still unless a test moves it: no test depends on how long it takes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> Instant:
        return Instant(self.now_s, NOON + self.now_s)


@dataclass
class Ingresses:
    """urls: of both. host: what counts for both."""

    urls: tuple[str, str]
    host: KeyHost

    def client(self, key: str, which: int = 0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}-secret"}
        return httpx.Client(base_url=self.urls[which], headers=headers, timeout=300, verify=_TLS)

    def get(self, path: str, key: str, which: int = 0) -> httpx.Response:
        with self.client(key, which) as client:
            return client.get(path)

    def complete(self, key: str, which: int = 0, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, **fields}
        with self.client(key, which) as client:
            return client.post("/v1/completions", json=body)

    def usage(self, **query: str) -> list[dict[str, Any]]:
        with self.client("admin") as client:
            return client.get("/usage", params=query).json()["data"]

    def settled(self, num_requests: int) -> list[dict[str, Any]]:
        """The ledger once it has so many requests, refused ones among them."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            found[:] = self.usage()
            return sum(row["requests"] + row["refused"] for row in found) >= num_requests

        assert wait_until(are_there), found
        return found

    def num_open(self, key: str) -> int:
        return self.host._book._limiter.num_open(key)


class Unreachable:
    """A `KeyService` before which a test can put a wall."""

    def __init__(self, service: KeyService) -> None:
        self._service = service
        self.error: Exception | None = None
        self.batches: list[tuple[str, int]] = []

    async def table(self, caller: str, known_version: str):
        return await self._service.table(caller, known_version)

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        if self.error is not None:
            raise self.error
        return await self._service.reserve(caller, asks)

    async def settle(self, caller: str, serial: int, settlements) -> None:
        """What is written is not always told."""
        self.batches.append((caller, serial))
        await self._service.settle(caller, serial, settlements)
        if self.error is not None:
            raise self.error

    async def usage(self, query):
        return await self._service.usage(query)


@contextmanager
def running(
    backend: FakeBackend,
    settings: KeySettings,
    wrap: Callable[[KeyHost], KeyService] = lambda host: host,
    **api: Any,
) -> Iterator[Ingresses]:
    """Two ingresses on an event loop in a thread, as two processes over one counter."""
    started: queue.Queue[tuple[list[str], KeyHost]] = queue.Queue()
    end = threading.Event()

    async def main() -> None:
        host = KeyHost(settings)
        service = wrap(host)
        own = ApiSettings(keys=settings, **api)
        servers = []
        for _ in range(2):
            app = create_app(backend, own, key_service=service)
            config = uvicorn.Config(app, port=0, log_level="critical", lifespan="on")
            servers.append(uvicorn.Server(config))
        tasks = [asyncio.create_task(server.serve()) for server in servers]
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        ports = [server.servers[0].sockets[0].getsockname()[1] for server in servers]
        started.put(([f"http://127.0.0.1:{port}" for port in ports], host))
        await asyncio.to_thread(end.wait)
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)
        await host.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    try:
        (first, second), host = started.get(timeout=300)
        found = Ingresses((first, second), host)
        for which in range(2):
            assert wait_until(lambda w=which: found.get("/ready", "admin", w).status_code == 200)
        yield found
    finally:
        end.set()
        thread.join(300)


Start = Callable[..., Ingresses]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(key_host, "present", found)
    return found


@pytest.fixture
def backend(served: ServedModel) -> FakeBackend:
    """Two models; each says letters until its limit."""
    found = FakeBackend([served, replace(served, name="other")])
    found.script = lambda request: [70] * 1000
    return found


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture
def start(backend: FakeBackend, keys_file: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts two ingresses with these keys, and `admin`, in a file."""
    with ExitStack() as ending:

        def begin(*entries: dict[str, Any], **rest: Any) -> Ingresses:
            write(keys_file, *entries)
            settings = KeySettings(str(tmp_path / "usage"), file=str(keys_file))
            return ending.enter_context(running(backend, settings, **rest))

        yield begin
