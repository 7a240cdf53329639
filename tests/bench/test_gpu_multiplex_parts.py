"""Pieces of bench/gpu/multiplex.py: the load, static splits, units over one executor, records."""

from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from bench.gpu.multiplexing.play import SLO_SCALE, play, requests_of, row_of
from bench.gpu.multiplexing.predict import predicted_per_s
from bench.gpu.multiplexing.split import Split
from bench.gpu.multiplexing.systems import (
    DRY_SITE,
    GPU_SITE,
    SYSTEMS,
    System,
    shared_unit,
    static_units,
    static_whole,
)
from bench.gpu.multiplexing.work import Work, busy_s, capacity_per_s, static_shares, tenants_of
from bench.gpu.running.listener import Heard, Listener
from muxcluster.core.errors import ConfigError
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.unit.unit import Unit
from muxcluster.placement.cost import Roofline
from muxcluster.placement.hardware import GPUS
from tests.engine.fakes import FakeExecutor, next_token

COST = Roofline(GPUS["H200"], 2)
TENANTS = tenants_of(("1b", "3b", "8b", "1b"), 1.3, tiny=False)
WORK = Work(TENANTS, 40.0, 20.0, 1.0, seed=0)
NAMED = {system.name: system for system in SYSTEMS}


def test_the_load_is_that_of_a_power_law_with_lengths_about_sharegpts() -> None:
    assert sum(tenant.part for tenant in TENANTS) == pytest.approx(1.0)
    assert TENANTS[0].part / TENANTS[3].part == pytest.approx(4**1.3)
    arrivals = replace(WORK, duration_s=200.0).arrivals()
    assert len(arrivals) == pytest.approx(8000, rel=0.1)
    popular = sum(each.model == "1b-0" for each in arrivals) / len(arrivals)
    assert popular == pytest.approx(TENANTS[0].part, rel=0.1)
    assert np.mean([each.prompt_tokens for each in arrivals]) == pytest.approx(161, rel=0.1)
    assert np.mean([each.output_tokens for each in arrivals]) == pytest.approx(338, rel=0.15)
    assert max(each.output_tokens for each in arrivals) == 1024
    assert arrivals == replace(WORK, duration_s=200.0).arrivals()


def test_capacity_is_what_fills_the_gpu_in_turns() -> None:
    capacity = capacity_per_s(TENANTS, COST, WORK.mean_tokens)
    busy = sum(
        capacity * tenant.part * busy_s(tenant, COST, WORK.mean_tokens, 1.0) for tenant in TENANTS
    )
    assert busy == pytest.approx(1.0)


def test_static_shares_are_tenths_of_the_whole_by_need() -> None:
    shares = static_shares(TENANTS, COST, WORK.mean_tokens)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0.1
    assert shares["1b-0"] > shares["1b-3"]


def whole_of(folder: Path, name: str) -> UnitSpec:
    return shared_unit(folder, WORK, GPU_SITE, NAMED[name])


def test_a_static_split_divides_pool_and_sms_and_nothing_twice(tmp_path: Path) -> None:
    whole = whole_of(tmp_path, "static-mps")
    shares = static_shares(TENANTS, COST, WORK.mean_tokens)
    units = static_units(whole, shares)
    assert [unit.models for unit in units] == [(model,) for model in whole.models]
    assert sum(unit.num_blocks for unit in units) <= whole.num_blocks
    tokens = [
        unit.num_blocks
        * unit.models[0].shape.block_tokens(unit.block_bytes)
        // unit.models[0].shape.blocks_per_column
        for unit in units
    ]
    assert max(tokens) - min(tokens) <= 32
    workers = static_whole(whole, shares).workers
    assert [worker.worker_id for worker in workers] == [0, 1, 2, 3]
    assert sum(worker.shares[0] for worker in workers) == pytest.approx(1.0)


def test_green_contexts_keep_two_models_apart_and_no_more(tmp_path: Path) -> None:
    shares = static_shares(TENANTS, COST, WORK.mean_tokens)
    with pytest.raises(ConfigError, match="green keeps 2 models apart, not 4"):
        static_units(whole_of(tmp_path, "static-green"), shares)


def test_every_system_has_the_same_pool(tmp_path: Path) -> None:
    pools = {(spec := whole_of(tmp_path, name)).num_blocks * spec.block_bytes for name in NAMED}
    assert len(pools) == 1
    assert pools.pop() < 60e9


TINY = Work(tenants_of(("1b", "8b"), 1.0, tiny=True), 40.0, 0.5, 0.05, seed=1)
SPLIT = System("static-threads", "threads", "mixed", is_static=True)


class Watching(FakeExecutor):
    """A fake that keeps what each worker was given."""

    def given_to(self, worker_id: int) -> list[Job]:
        return [job for job in self.launched if job.worker_id == worker_id]


@pytest.fixture
def split_units(tmp_path: Path) -> tuple[UnitSpec, ...]:
    whole = shared_unit(tmp_path, TINY, DRY_SITE, SPLIT)
    return static_units(whole, {"1b-0": 0.5, "8b-1": 0.5})


def test_units_over_one_executor_get_their_own_answers(split_units: tuple[UnitSpec, ...]) -> None:
    executor, listener = Watching(), Listener()
    vocab = {tenant.name: tenant.shape.vocab_size for tenant in TINY.tenants}
    asked = requests_of(TINY.arrivals(), vocab, seed=0)
    with Split(executor, split_units) as split:
        units = {
            spec.models[0].name: Unit(spec, listener.hear, executor=side)
            for spec, side in zip(split_units, split.sides, strict=True)
        }
        for unit in units.values():
            unit.start()
        records = play(units, asked, listener, monotonic() + 60)
        for unit in units.values():
            unit.close()
    assert executor.is_closed
    assert bool(records.is_finished.all())
    assert {arrival.model for arrival, _ in asked} == units.keys()
    for arrival, request in asked:
        tokens = listener.heard[arrival.request_id].tokens
        context = request.prompt_tokens.tolist()
        for token in tokens:
            assert token == next_token(context)
            context.append(token)
    ids = [job.job_id for job in executor.launched]
    assert len(set(ids)) == len(ids)
    border = split_units[0].num_blocks
    for worker_id, spec in enumerate(split_units):
        jobs = executor.given_to(worker_id)
        assert {job.model for job in jobs} == {spec.models[0].name}
        blocks = np.concatenate([job.tables.blocks.ravel() for job in jobs])
        assert ((blocks >= border) == bool(worker_id)).all()


def test_a_lost_owner_ends_all_units(split_units: tuple[UnitSpec, ...]) -> None:
    listener = Listener()
    with Split(FakeExecutor(["owner lost"]), split_units) as split:
        units = [
            Unit(spec, listener.hear, executor=side)
            for spec, side in zip(split_units, split.sides, strict=True)
        ]
        for unit in units:
            unit.start()
        vocab = {tenant.name: tenant.shape.vocab_size for tenant in TINY.tenants}
        arrival, request = requests_of(TINY.arrivals(), vocab, seed=0)[0]
        next(unit for unit in units if unit_has(unit, arrival.model)).submit(request)
        assert listener.wait(1, monotonic() + 60)
        deadline = monotonic() + 60
        while any(unit.state != "failed" for unit in units):
            assert monotonic() < deadline
            sleep(0.01)
        for unit in units:
            unit.close()
    assert listener.heard[arrival.request_id].end.startswith("error")


def unit_has(unit: Unit, model: str) -> bool:
    return model in {each.name for each in unit.stats().models}


class Late:
    """Takes requests and answers from a script, tokens at seconds from the start."""

    def __init__(self, listener: Listener, times_s: dict[str, list[float]]) -> None:
        self._listener, self._times_s = listener, times_s
        self._start_s = monotonic()

    def submit(self, request: object) -> None:
        request_id = request.request_id  # type: ignore[attr-defined]  # a Request
        times = [self._start_s + each for each in self._times_s[request_id]]
        wanted = request.sampling.max_tokens  # type: ignore[attr-defined]  # a Request
        end = "finished" if len(times) == wanted else ""
        self._listener.heard[request_id] = Heard([1] * len(times), times, end)


def test_what_did_not_end_is_a_miss_and_not_in_the_percentiles() -> None:
    work = replace(TINY, duration_s=1.0, rate_per_s=20.0)
    vocab = {tenant.name: tenant.shape.vocab_size for tenant in work.tenants}
    asked = requests_of(work.arrivals(), vocab, seed=0)
    listener = Listener()
    times = {}
    for index, (arrival, _) in enumerate(asked):
        count = arrival.output_tokens - (index == 0)
        times[arrival.request_id] = [arrival.time_s + 0.5 + 1e-9 * i for i in range(count)]
    late = Late(listener, times)
    units = {tenant.name: late for tenant in work.tenants}
    records = play(units, asked, listener, monotonic() + 0.2)  # type: ignore[arg-type]  # a fake
    row = row_of(records, work, COST)
    assert (row["requests"], row["finished"]) == (len(asked), len(asked) - 1)
    assert row["slo_attainment"] <= 1 - 1 / len(asked)
    assert row["latency_p99_s"] == pytest.approx(0.5, abs=0.3)
    assert SLO_SCALE > 1


@pytest.mark.slow
def test_the_simulator_serves_an_easy_load_and_knows_an_impossible_one(tmp_path: Path) -> None:
    easy = replace(WORK, rate_per_s=2.0, duration_s=60.0)
    for name in ("temporal", "adbs-mps", "mixed"):
        spec = shared_unit(tmp_path, easy, GPU_SITE, NAMED[name])
        assert predicted_per_s((spec,), easy, COST, 65.0) == pytest.approx(2.0, rel=0.25)
    hard = replace(WORK, rate_per_s=2000.0, duration_s=2.0)
    spec = shared_unit(tmp_path, hard, GPU_SITE, NAMED["temporal"])
    assert predicted_per_s((spec,), hard, COST, 3.0) < 400


@pytest.mark.slow
def test_a_static_split_is_predicted_slower_for_its_neighbours(tmp_path: Path) -> None:
    work = replace(WORK, rate_per_s=30.0)
    whole = shared_unit(tmp_path, work, GPU_SITE, NAMED["static-mps"])
    shares = static_shares(TENANTS, COST, work.mean_tokens)
    together = predicted_per_s(static_units(whole, shares), work, COST, 25.0)
    calm = Calm(COST.gpu, COST.itemsize, COST.tuning)
    alone = predicted_per_s(static_units(whole, shares), work, calm, 25.0)
    assert 0 < together < alone


class Calm(Roofline):
    """Neighbours cost nothing."""

    def slowdown(self, draws: object) -> float:
        return 1.0
