"""The backend over units that die, move, stall and fail: routing, states and limits."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.errors import NotReady, Overloaded
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import ServedModel, UnitState, UnitStats
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.recovery import MAX_LOSSES_IN_A_ROW
from muxcluster.router.unit_link import LinkState, UnitLink
from muxcluster.router.unit_links import UnitLinks, keep_in_step

MODEL = ServedModel("m", "/m", 64, 100, (0,))
NUM_TOKENS = 6
T = TypeVar("T")


class DyingUnit:
    """A connected client whose unit counts up from what it was given, and may die."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.state = UnitState.READY
        self.dies_after = math.inf
        self.is_full = 0
        self.requests: list[Request] = []
        self._is_dead = False
        self._gone = asyncio.Event()
        self.heard_at = time.monotonic()
        self.hangs = False

    def stats(self) -> UnitStats | None:
        return UnitStats(self.endpoint, 0.0, 1, 1, state=self.state)

    def stats_age_s(self) -> float:
        return time.monotonic() - self.heard_at if self._is_dead or self.hangs else 0.0

    def is_broken(self) -> bool:
        return self._is_dead

    def kill(self) -> None:
        """As kill -9 looks from here."""
        self._is_dead = True
        self._gone.set()

    async def close(self) -> None:
        self.kill()

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        if self.is_full:
            self.is_full -= 1
            raise Overloaded("too many messages wait")
        self.requests.append(request)
        for i in range(len(request.output_tokens), NUM_TOKENS):
            if i >= self.dies_after:
                self.kill()
            if self._is_dead:
                raise NotReady("the connection broke", code="replica_lost")
            end = Finished(request.request_id, FinishReason.LENGTH) if i == NUM_TOKENS - 1 else None
            yield TokenDelta((i,), finished=end)
            await asyncio.sleep(0)
        if self.hangs:
            await self._gone.wait()


class Cluster:
    """Links over fake units; a unit that dies gets a successor where `revives` says so."""

    def __init__(self, *unit_ids: str, wait_s: float = 20.0) -> None:
        self.units: dict[str, list[DyingUnit]] = {unit_id: [] for unit_id in unit_ids}
        self.directory = Directory((MODEL,), {"m": unit_ids})
        self.revives: Callable[[DyingUnit], None] | None = lambda unit: None
        self.lines = UnitLinks(self._connect, wait_s)
        self.backend = ClusterBackend(self.lines, wait_s)

    @property
    def link(self) -> UnitLink:
        return self.lines.links()[0]

    async def _connect(self, address: UnitAddress, keys: KeyPair | None) -> DyingUnit:
        unit = DyingUnit(address.endpoint)
        made = self.units[address.unit_id]
        if made and self.revives is not None:
            self.revives(unit)
        made.append(unit)
        return unit

    async def ask(self, known: str | None) -> Directory | None:
        """As the controller, which sees a unit's restart at once."""
        where = dict(self.directory.units)
        for unit_id, made in self.units.items():
            if not made or (self.revives is not None and made[-1].is_broken()):
                where[unit_id] = UnitAddress(unit_id, f"{unit_id}/{len(made)}")
        self.directory = replace(self.directory, units=where)
        return None if self.directory.version == known else self.directory

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """`work` once all units are up, with the watch beside it."""
        watch = asyncio.create_task(keep_in_step(self.lines, self.ask))
        async with asyncio.timeout(20.0):
            while not self.backend.ready():
                await asyncio.sleep(0.01)
            try:
                return await work()
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def tokens(self, name: str = "r") -> list[int]:
        request = Request(name, "m", np.arange(3, dtype=np.int32), SamplingParams())
        return [token async for d in self.backend.generate(request) for token in d.tokens]


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.01)


def test_a_stream_goes_on_in_the_successor() -> None:
    async def main() -> None:
        cluster = Cluster("a")

        async def work() -> None:
            cluster.units["a"][0].dies_after = 3
            streams = [cluster.tokens(f"r{i}") for i in range(5)]
            assert await asyncio.gather(*streams) == [list(range(NUM_TOKENS))] * 5
            again = cluster.units["a"][1].requests
            assert sorted(request.request_id for request in again) == [f"r{i}~1" for i in range(5)]
            assert all(len(request.prompt_tokens) == 3 for request in again)
            assert max(request.output_tokens.tolist() for request in again) == [0, 1, 2]

        await cluster.run(work)

    asyncio.run(main())


def test_another_unit_of_the_model_takes_over_at_once() -> None:
    async def main() -> None:
        cluster = Cluster("a", "b")
        cluster.revives = None  # the dead one stays dead

        async def work() -> None:
            cluster.units["a"][0].dies_after = 2
            assert await cluster.tokens() == list(range(NUM_TOKENS))
            assert cluster.units["b"][0].requests[0].output_tokens.tolist() == [0, 1]
            # nobody waits for the dead one: others serve its model
            assert cluster.backend.ready() and cluster.backend.healthy()

        await cluster.run(work)

    asyncio.run(main())


def test_requests_that_come_during_the_recovery_wait_for_it() -> None:
    async def main() -> None:
        cluster = Cluster("a")
        revive, cluster.revives = cluster.revives, None

        async def work() -> None:
            cluster.units["a"][0].kill()
            stream = asyncio.create_task(cluster.tokens())
            await asyncio.sleep(0.05)
            assert not stream.done() and not cluster.backend.ready()
            assert cluster.link.state() is LinkState.UNREACHABLE
            cluster.revives = revive
            assert await stream == list(range(NUM_TOKENS))
            assert cluster.backend.ready()

        await cluster.run(work)

    asyncio.run(main())


def test_a_storm_of_restarts_ends_with_replica_lost() -> None:
    async def main() -> None:
        cluster = Cluster("a")

        def die_at_once(unit: DyingUnit) -> None:
            unit.dies_after = 0

        cluster.revives = die_at_once

        async def work() -> None:
            die_at_once(cluster.units["a"][0])
            with pytest.raises(NotReady, match=f"{MAX_LOSSES_IN_A_ROW} times") as lost:
                await cluster.tokens()
            assert lost.value.code == "replica_lost"
            assert sum(len(unit.requests) for unit in cluster.units["a"]) == MAX_LOSSES_IN_A_ROW
            cluster.revives = lambda unit: None
            assert await cluster.tokens() == list(range(NUM_TOKENS))

        await cluster.run(work)

    asyncio.run(main())


def test_a_unit_that_stays_away_too_long_is_given_up_and_unhealthy() -> None:
    async def main() -> None:
        cluster = Cluster("a", wait_s=0.3)
        cluster.revives = None

        async def work() -> None:
            cluster.units["a"][0].kill()
            assert cluster.backend.healthy() and not cluster.backend.ready()
            with pytest.raises(NotReady, match="came back within 0.3 s") as lost:
                await cluster.tokens()
            assert lost.value.code == "replica_lost" and lost.value.retry_after_s <= 60
            assert not cluster.backend.healthy()
            cluster.revives = lambda unit: None
            await until(cluster.backend.ready)
            assert cluster.backend.healthy()

        await cluster.run(work)

    asyncio.run(main())


def test_health_and_readiness_follow_the_units_own_word() -> None:
    async def main() -> None:
        cluster = Cluster("a")

        async def work() -> None:
            unit, backend = cluster.units["a"][0], cluster.backend
            unit.state = UnitState.RECOVERING
            assert backend.healthy() and not backend.ready()
            # it takes requests and keeps them until its processes are back
            assert await cluster.tokens() == list(range(NUM_TOKENS))
            unit.state = UnitState.FAILED
            assert not backend.healthy() and not backend.ready()
            unit.state = UnitState.READY
            assert backend.healthy() and backend.ready()
            unit.hangs, unit.heard_at = True, time.monotonic() - 7.0
            assert backend.healthy() and not backend.ready()
            unit.heard_at = time.monotonic() - 15.0
            assert not backend.healthy() and not backend.ready()

        await cluster.run(work)

    asyncio.run(main())


def test_an_accepted_request_is_not_lost_to_a_full_queue() -> None:
    async def main() -> None:
        cluster = Cluster("a")

        def fill(unit: DyingUnit) -> None:
            unit.is_full = 2

        cluster.revives = fill

        async def work() -> None:
            cluster.units["a"][0].is_full = 1
            with pytest.raises(Overloaded):
                await cluster.tokens()
            cluster.units["a"][0].dies_after = 1
            assert await cluster.tokens() == list(range(NUM_TOKENS))

        await cluster.run(work)

    asyncio.run(main())


def test_a_drain_cuts_what_does_not_end_and_says_why() -> None:
    async def main() -> None:
        cluster = Cluster("a")
        cluster.revives = None

        async def work() -> None:
            cluster.units["a"][0].kill()
            waiting = asyncio.create_task(cluster.tokens())
            await asyncio.sleep(0.05)
            assert await cluster.backend.drain(0.05) == 1
            with pytest.raises(NotReady) as cut:
                await waiting
            assert cut.value.code == "server_shutting_down"

        await cluster.run(work)

    asyncio.run(main())
