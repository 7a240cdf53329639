"""Units with more models than memory: every request ends once, with the tokens it has alone."""

import random
from collections.abc import Iterable

import pytest

from muxcluster.core.served import UnitState
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.unit.unit import Unit
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import wait_until_gone
from tests.engine.residency.clients import Clients, Killer
from tests.engine.residency.moved import in_turns
from tests.engine.units import spec_of
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

FOUR = ("llama", "opt", "mixtral", "bloom")
TWELVE = (*FOUR, "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gpt_neox", "mpt")


def clients_of(tiny: ModelBuilder, families: Iterable[str], num_resident: int) -> Clients:
    """Clients of a unit that has not started."""
    paths = {family: tiny(family) for family in families}
    spec = in_turns(spec_of(paths.values(), num_columns=400), num_resident)
    oracles = {path.name: GreedyOracle(path) for path in paths.values()}
    executor = ResidencyExecutor(spec)
    unit = Unit(spec, lambda deltas: clients.hear(deltas), executor=executor)
    clients = Clients(unit, executor, spec, oracles)
    return clients


def test_more_models_than_memory_answer_as_alone_though_processes_are_killed(
    tiny: ModelBuilder,
) -> None:
    """Four families in memory for two, 16 clients, batch work beside."""
    clients = clients_of(tiny, FOUR, num_resident=2)
    clients.num_clients = 16
    killer = Killer(clients.executor, random.Random(2))
    script = {20: killer.worker, 40: killer.waking, 60: killer.model_owner}

    def disturb(num_ended: int) -> None:
        if num_ended in script:
            script[num_ended]()

    clients.unit.start()
    try:
        clients.run(100, disturb)
        stats = clients.unit.stats()
        processes = [clients.executor.owner_pid, *clients.executor.model_pids.values()]
    finally:
        clients.unit.close()
    assert killer.kills["worker"] == killer.kills["model owner"] == 1
    assert set(clients.by_model) == {model.name for model in clients.spec.models}
    assert all(model.num_wakes for model in stats.models if model.weights != "resident")
    assert sum(model.weights == "resident" for model in stats.models) <= 2
    wait_until_gone(processes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twelve_families_in_memory_for_four_lose_no_request_of_ten_thousand(
    tiny: ModelBuilder,
) -> None:
    """64 clients, Zipf popularity, a fifth batch work, and a kill of some kind all along."""
    clients = clients_of(tiny, TWELVE, num_resident=4)
    killer = Killer(clients.executor, random.Random(3))
    kinds = (killer.worker, killer.waking, killer.worker, killer.model_owner)
    clients.unit.start()

    def disturb(num_ended: int) -> None:
        if num_ended in (3_000, 7_000):
            killer.pool_owner()
        elif num_ended % 250 == 0:
            kinds[num_ended // 250 % len(kinds)]()

    try:
        clients.run(10_000, disturb)
        stats = clients.unit.stats()
        assert clients.unit.state is UnitState.READY
    finally:
        clients.unit.close()
    assert killer.kills["pool owner"] == 2
    assert min(killer.kills.values()) >= 2
    assert sum(clients.by_model.values()) == 10_000
    assert set(clients.by_model) == {model.name for model in clients.spec.models}
    assert sum(model.num_wakes for model in stats.models) > 12
