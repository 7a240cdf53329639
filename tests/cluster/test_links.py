"""Links follow a unit that moved; the backend drains and knows silence from warm-up."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np
import pytest

from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.errors import NotReady
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import ServedModel, UnitStats
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.unit_links import UnitLinks, keep_in_step

MODEL = ServedModel("m", "/m", 64, 100, (0,))
REQUEST = Request("r", "m", np.zeros(3, np.int32), SamplingParams())


class FakeUnit:
    """A connected client whose reports and answers the test controls."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.age = 0.0
        self.reported = True
        self.is_closed = False
        self.broken = False
        self.gate = asyncio.Event()
        self.num_aborted = 0

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        try:
            yield TokenDelta((1,))
            await self.gate.wait()
            yield TokenDelta((2,), finished=Finished("r", FinishReason.LENGTH))
        except GeneratorExit:
            self.num_aborted += 1
            raise

    def stats(self) -> UnitStats | None:
        return UnitStats(self.endpoint, 0.0, 1, 1) if self.reported else None

    def stats_age_s(self) -> float:
        return self.age if self.reported else float("inf")

    def is_broken(self) -> bool:
        return self.broken

    async def close(self) -> None:
        self.is_closed = True


class Clients:
    """Connects, and remembers every client made."""

    def __init__(self) -> None:
        self.made: list[FakeUnit] = []

    async def connect(self, address: UnitAddress, keys: KeyPair | None) -> FakeUnit:
        self.made.append(FakeUnit(address.endpoint))
        return self.made[-1]


def _at(endpoint: str) -> Directory:
    return Directory((MODEL,), {"m": ("unit-0",)}, {"unit-0": UnitAddress("unit-0", endpoint)})


async def _backend() -> tuple[ClusterBackend, UnitLinks, Clients]:
    clients = Clients()
    lines = UnitLinks(clients.connect)
    return ClusterBackend(lines), lines, clients


async def _first(tokens: AsyncIterator[TokenDelta]) -> TokenDelta:
    return await anext(tokens)


def test_a_request_before_the_first_report_is_told_to_wait() -> None:
    async def run() -> None:
        backend, lines, clients = await _backend()
        assert not backend.ready() and backend.healthy()
        with pytest.raises(NotReady) as refused:
            await _first(backend.generate(REQUEST))
        assert refused.value.code == "model_loading"
        await lines.apply(_at("a"))
        clients.made[0].reported = False
        with pytest.raises(NotReady):
            await _first(backend.generate(REQUEST))
        clients.made[0].reported = True
        assert backend.ready() and (await _first(backend.generate(REQUEST))).tokens == (1,)

    asyncio.run(run())


def test_the_directory_is_polled_and_followed_and_its_version_is_passed_back() -> None:
    async def run() -> None:
        _, lines, clients = await _backend()
        where, known = [_at("a")], []

        async def ask(version: str | None) -> Directory | None:
            known.append(version)
            return None if version == where[0].version else where[0]

        async def until(count: int) -> None:
            while len(clients.made) < count:
                await asyncio.sleep(0.01)

        watch = asyncio.create_task(keep_in_step(lines, ask))
        await until(1)
        assert clients.made[0].endpoint == "a"
        first, where[0] = where[0], _at("b")
        await until(2)
        assert clients.made[1].endpoint == "b"
        while where[0].version not in known:
            await asyncio.sleep(0.01)
        watch.cancel()
        assert known[0] is None and first.version in known and clients.made[0].is_closed
        assert len(clients.made) == 2

    asyncio.run(run())


def test_who_waits_for_a_unit_is_woken_though_it_was_away_for_a_moment_only() -> None:
    async def run() -> None:
        backend, lines, clients = await _backend()
        await lines.apply(_at("a"))
        await lines.refresh()
        assert backend.ready()
        clients.made[0].age = 60.0
        first = asyncio.create_task(_first(backend.generate(REQUEST)))
        await asyncio.sleep(0)
        assert not first.done()
        clients.made[0].age = 0.0
        await lines.refresh()
        async with asyncio.timeout(5.0):
            assert (await first).tokens == (1,)

    asyncio.run(run())


def test_the_same_endpoint_is_not_connected_twice() -> None:
    async def run() -> None:
        _, lines, clients = await _backend()
        await lines.apply(_at("a"))
        await lines.apply(_at("a"))
        assert len(clients.made) == 1

    asyncio.run(run())


def test_silence_after_warm_up_is_unhealthy_and_not_ready() -> None:
    async def run() -> None:
        backend, lines, clients = await _backend()
        await lines.apply(_at("a"))
        assert backend.ready() and backend.healthy()
        clients.made[0].age = 7.0
        assert not backend.ready() and backend.healthy()
        clients.made[0].age = 60.0
        assert not backend.ready() and not backend.healthy()
        clients.made[0].age = 0.1
        assert backend.ready() and backend.healthy()

    asyncio.run(run())


def test_closing_a_stream_reaches_the_unit() -> None:
    async def run() -> None:
        backend, lines, clients = await _backend()
        await lines.apply(_at("a"))
        tokens = backend.generate(REQUEST)
        await _first(tokens)
        assert isinstance(tokens, AsyncGenerator)
        await tokens.aclose()
        assert clients.made[0].num_aborted == 1
        assert await backend.drain(0.0) == 0

    asyncio.run(run())


def test_drain_refuses_the_new_and_waits_for_the_open() -> None:
    async def run() -> None:
        backend, lines, clients = await _backend()
        await lines.apply(_at("a"))
        tokens = backend.generate(REQUEST)
        await _first(tokens)
        drained = asyncio.create_task(backend.drain(60.0))
        await asyncio.sleep(0)
        assert not backend.ready()
        with pytest.raises(NotReady) as refused:
            await _first(backend.generate(REQUEST))
        assert refused.value.code == "server_shutting_down"
        clients.made[0].gate.set()
        assert [delta.tokens async for delta in tokens] == [(2,)]
        assert await drained == 0

    asyncio.run(run())
