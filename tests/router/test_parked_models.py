"""Requests and orders for models whose weights are on some of their units only."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import numpy as np
import pytest

from muxcluster.core.directory import Directory, KeyPair, UnitAddress
from muxcluster.core.errors import ModelNotFound, MoveRefused
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import ModelStats, ServedModel, UnitStats
from muxcluster.router.backend import RoutedBackend
from muxcluster.router.fleet import ClusterBackend
from muxcluster.router.unit_links import UnitLinks

MODEL = ServedModel("m", "/m", 64, 100, (0,))
UNITS = ("u-0", "u-1")


class Reporting:
    """A connected unit that reports what the test says, and ends every request at once."""

    def __init__(self, unit_id: str, report: ModelStats) -> None:
        self.unit_id = unit_id
        self.report = report
        self.now_s = 0.0
        self.num_requests = 0
        self.orders: list[WeightOrder] = []

    def stats(self) -> UnitStats:
        self.now_s += 1.0
        return UnitStats(self.unit_id, self.now_s, 1, 1, (ModelStats("other"), self.report))

    def stats_age_s(self) -> float:
        return 0.0

    def is_broken(self) -> bool:
        return False

    async def request_move(self, model: str, order: WeightOrder) -> None:
        if order is WeightOrder.PIN:
            raise MoveRefused("no room")
        self.orders.append(order)

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        self.num_requests += 1
        yield TokenDelta((1,), finished=Finished(request.request_id, FinishReason.LENGTH))

    async def close(self) -> None: ...


def run(
    reports: Mapping[str, ModelStats],
    scenario: Callable[[ClusterBackend, Mapping[str, Reporting]], Awaitable[None]],
) -> None:
    units = {unit_id: Reporting(unit_id, report) for unit_id, report in reports.items()}

    async def connect(address: UnitAddress, keys: KeyPair | None) -> Reporting:
        return units[address.unit_id]

    async def main() -> None:
        links = UnitLinks(connect)
        addresses = {unit: UnitAddress(unit, unit) for unit in units}
        await links.apply(Directory((MODEL,), {"m": tuple(units)}, addresses))
        await links.refresh()
        await scenario(ClusterBackend(links), units)

    asyncio.run(main())


async def ask(backend: ClusterBackend, count: int = 1) -> None:
    for index in range(count):
        request = Request(f"{index}", "m", np.zeros(3, np.int32), SamplingParams())
        async for _ in backend.generate(request):
            pass


def counts(units: Mapping[str, Reporting]) -> list[int]:
    return [units[unit].num_requests for unit in UNITS]


def test_a_request_goes_where_its_model_is_resident() -> None:
    away = ModelStats("m", weights="parked", expected_wait_s=0.5)

    async def scenario(backend: ClusterBackend, units: Mapping[str, Reporting]) -> None:
        await ask(backend, 10)
        assert counts(units) == [0, 10]

    run({"u-0": away, "u-1": ModelStats("m")}, scenario)


def test_a_queue_longer_than_a_wake_sends_requests_to_the_parked_one() -> None:
    away = ModelStats("m", weights="parked", expected_wait_s=0.5)
    crowded = ModelStats("m", num_waiting=100, waiting_tokens=100_000)

    async def scenario(backend: ClusterBackend, units: Mapping[str, Reporting]) -> None:
        await ask(backend)
        assert counts(units) == [1, 0]

    run({"u-0": away, "u-1": crowded}, scenario)


def test_a_held_model_gets_requests_elsewhere_and_only_then_waits() -> None:
    held = ModelStats("m", weights="parked", order="hold")
    away = ModelStats("m", weights="parked", expected_wait_s=30.0)

    async def scenario(backend: ClusterBackend, units: Mapping[str, Reporting]) -> None:
        await ask(backend)
        assert counts(units) == [0, 1]
        units["u-1"].report = held
        await ask(backend)
        assert sum(counts(units)) == 2

    run({"u-0": held, "u-1": away}, scenario)


def test_an_order_goes_to_all_units_of_a_model_or_to_one() -> None:
    async def scenario(backend: ClusterBackend, units: Mapping[str, Reporting]) -> None:
        await backend.request_move("m", WeightOrder.PARK)
        await backend.request_move("m", WeightOrder.WAKE, "u-1")
        orders = [units[unit].orders for unit in UNITS]
        assert orders == [[WeightOrder.PARK], [WeightOrder.PARK, WeightOrder.WAKE]]
        with pytest.raises(ModelNotFound):
            await backend.request_move("m", WeightOrder.WAKE, "u-7")
        with pytest.raises(ModelNotFound):
            await backend.request_move("other", WeightOrder.WAKE)
        with pytest.raises(MoveRefused):
            await backend.request_move("m", WeightOrder.PIN)
        assert set(backend.model_stats("m")) == set(UNITS)
        assert backend.model_stats("unknown") == {}

    run(dict.fromkeys(UNITS, ModelStats("m")), scenario)


def test_units_of_this_process_take_orders_too() -> None:
    async def main() -> None:
        unit = Reporting("u-0", ModelStats("m", weights="parked"))
        backend = RoutedBackend([MODEL], {"m": unit, "other": unit})
        assert backend.model_stats("m") == {"u-0": unit.report}
        await backend.request_move("m", WeightOrder.WAKE)
        unit.report = ModelStats("m")
        await backend.request_move("m", WeightOrder.PARK, "u-0")
        assert unit.orders == [WeightOrder.WAKE, WeightOrder.PARK]
        assert backend.model_stats("m") == {"u-0": unit.report}
        with pytest.raises(ModelNotFound):
            await backend.request_move("m", WeightOrder.PARK, "u-1")
        with pytest.raises(ModelNotFound):
            await backend.request_move("unknown", WeightOrder.PARK)

    asyncio.run(main())
