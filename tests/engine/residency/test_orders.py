"""An operator's orders to a unit with more models than memory, in real processes."""

import time
from collections.abc import Callable

import pytest

from muxcluster.core.errors import ModelNotFound, MoveRefused, NotReady
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import ModelStats
from muxcluster.engine.unit.unit import Unit
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import wait_until_gone
from tests.engine.residency.clients import PATIENCE_S, Clients
from tests.engine.residency.test_units import clients_of

pytestmark = pytest.mark.usefixtures("fast_children")

PAIR = ("llama", "opt")


def state_of(unit: Unit, name: str) -> ModelStats:
    return next(each for each in unit.stats().models if each.name == name)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def moved(clients: Clients, name: str, order: WeightOrder, weights: str) -> None:
    clients.unit.request_move(name, order)
    until(lambda: state_of(clients.unit, name).weights == weights)


def test_orders_move_models_of_a_running_unit(tiny: ModelBuilder) -> None:
    clients = clients_of(tiny, PAIR, num_resident=2)
    unit, executor = clients.unit, clients.executor
    names = [model.name for model in clients.spec.models]
    with pytest.raises(NotReady):
        unit.request_move(names[0], WeightOrder.PARK)
    unit.start()
    try:
        processes = executor.model_pids
        assert set(processes) == set(names)
        moved(clients, names[0], WeightOrder.HOLD, "parked")
        wait_until_gone([processes[names[0]]])
        assert set(executor.model_pids) == {names[1]}
        assert unit.num_open == 0 and state_of(unit, names[0]).order == "hold"
        moved(clients, names[0], WeightOrder.WAKE, "resident")  # an idle unit wakes it, too
        assert state_of(unit, names[0]).num_wakes == 1
        moved(clients, names[1], WeightOrder.PARK, "parked")
        clients.run(20, lambda _: None)  # to both: the next request wakes what was parked
        assert set(executor.model_pids) == set(names)
        unit.request_move(names[0], WeightOrder.PIN)
        with pytest.raises(MoveRefused):
            unit.request_move(names[0], WeightOrder.PARK)
        with pytest.raises(ModelNotFound):
            unit.request_move("nobody", WeightOrder.WAKE)
    finally:
        unit.close()
    with pytest.raises(NotReady):
        unit.request_move(names[0], WeightOrder.WAKE)
