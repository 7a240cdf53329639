"""The way from many requests to the counter: few calls, and nothing left open."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from muxcluster.core.errors import NotReady, Overloaded
from muxcluster.http.keys.meter import Meter
from muxcluster.http.keys.ring import KeyRing
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.book import KeyBook
from muxcluster.tenants.keys import KeyLimits, TenantKey, digest_of
from muxcluster.tenants.limiter import Instant
from muxcluster.tenants.messages import Ask, Grant, UsageQuery

KEY = TenantKey("a", digest_of(b"a"), limits=KeyLimits(concurrent_requests=40))


class Slow(KeyBook):
    """Answers late, and at times not at all although it has done what was asked."""

    def __init__(self, folder: Path, rng: random.Random, num_lost: int) -> None:
        super().__init__(folder, lambda: Instant(1.0, 1e9))
        self.replace_keys([KEY])
        self.num_calls = 0
        self._rng = rng
        self._lost_answers = num_lost

    async def _late(self) -> None:
        for _ in range(self._rng.randint(0, 4)):
            await asyncio.sleep(0)

    async def reserve(self, caller: str, asks: Sequence[Ask]) -> list[Grant]:
        self.num_calls += 1
        await self._late()
        found = await super().reserve(caller, asks)
        await self._late()
        return found

    async def settle(self, caller: str, serial: int, settlements) -> None:
        await self._late()
        await super().settle(caller, serial, settlements)
        if self._lost_answers > 0:
            self._lost_answers -= 1
            raise NotReady("the answer is lost")


def ring_of(book: KeyBook, failures: list[str]) -> KeyRing:
    return KeyRing(ApiSettings(), book, failures.append)


async def _flush(ring: KeyRing) -> None:
    while ring._batch or ring._settlements:
        await ring._settle(ring._service)


async def _deliver(ring: KeyRing) -> None:
    """As the ring's own task, without its pauses."""
    while True:
        await ring._settle(ring._service)
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
def test_clients_that_leave_at_any_moment_leave_nothing_open(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    book = Slow(tmp_path, rng, num_lost=3)
    failures: list[str] = []
    ring = ring_of(book, failures)
    outcomes: list[str] = []

    async def request() -> None:
        meter = Meter(KEY, ring)
        try:
            await meter.reserve("m", 3, 4)
            for _ in range(rng.randint(0, 5)):
                await asyncio.sleep(0)
            meter.count(0, 3, 2, 1)
            outcomes.append("done")
        except Overloaded:
            outcomes.append("refused")
        finally:
            meter.end()

    async def main() -> None:
        tasks = []
        delivering = asyncio.create_task(_deliver(ring))
        for _ in range(400):
            tasks.append(asyncio.create_task(request()))
            for _ in range(rng.randint(0, 2)):
                await asyncio.sleep(0)
            if rng.random() < 0.4:
                rng.choice(tasks[-12:]).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        while ring._asking is not None or ring._batch or ring._settlements:
            await asyncio.sleep(0)
        delivering.cancel()
        (row,) = await book.usage(UsageQuery())
        assert outcomes.count("done") <= row.requests
        assert row.refused == outcomes.count("refused")
        assert row.completion_tokens == 2 * outcomes.count("done")

    asyncio.run(main())
    assert book._limiter.num_open("a") == 0
    book._limiter.check()
    assert outcomes.count("done") > 100
    assert book.num_calls < 400  # requests share calls
    assert failures.count("settle") == 3


def test_reports_beyond_what_is_kept_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muxcluster.http.keys.ring.MOST_WAITING", 2)
    book = Slow(tmp_path, random.Random(0), num_lost=0)
    failures: list[str] = []
    ring = ring_of(book, failures)

    async def main() -> None:
        for _ in range(5):
            meter = Meter(TenantKey("free", "0" * 64), ring)
            await meter.reserve("m", 1, 1)
            meter.end()
            meter.end()
        await _flush(ring)

    asyncio.run(main())
    assert failures == ["dropped"] * 3
    assert asyncio.run(book.usage(UsageQuery()))[0].requests == 2
