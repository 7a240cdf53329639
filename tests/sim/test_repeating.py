"""Repeated decode steps are those that the scheduler would have ordered one by one."""

import math
from dataclasses import replace

import pytest

from muxcluster.placement.execution import executions
from muxcluster.placement.hardware import GPUS
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.core.timing import Work
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.requests import request_of
from muxcluster.workload.arrival import Arrival
from tests.amounts import slow
from tests.sim.cases import FixedTiming, arrivals, sim_unit

LANES = ["adbs", "temporal", "round-robin", "mixed"]


def both(
    unit: SimUnit, asked: list[Arrival], until_s: float = math.inf
) -> tuple[SimResult, SimResult, list[JobSpan]]:
    """Every step by the scheduler (a watched exact run), and repeated steps; jobs of the first."""
    jobs: list[JobSpan] = []
    plain = simulate([unit], asked, until_s=until_s, exact=True, on_job=jobs.append)
    return plain, simulate([unit], asked, until_s=until_s, exact=True), jobs


@pytest.mark.parametrize(
    "models",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in (("a",), ("a", "b"))),
        ("a", "b", "c"),
    ],
)
@pytest.mark.parametrize("num_columns", [*slow(4000), 260])
@pytest.mark.parametrize("lane", ["adbs", "mixed", *slow("temporal", "round-robin")])
def test_every_request_fares_the_same_to_the_last_bit(
    lane: str, num_columns: int, models: tuple[str, ...]
) -> None:
    unit = sim_unit(models=models, lane=lane, num_columns=num_columns)
    plain, repeated, jobs = both(unit, arrivals(120, 6.0, models))
    assert plain.records.rows.tobytes() == repeated.records.rows.tobytes()
    assert plain.end_s == repeated.end_s
    assert plain.num_jobs == repeated.num_jobs == len(jobs)
    assert all(job.num_steps == 1 for job in jobs)


@pytest.mark.parametrize("num_columns", [*slow(4000), 260])
@pytest.mark.parametrize("lane", ["adbs", *slow("temporal", "round-robin"), "mixed"])
def test_blocks_that_windows_give_back_come_at_the_same_step(lane: str, num_columns: int) -> None:
    unit = sim_unit(lane=lane, num_columns=num_columns)
    every, second = unit.spec.models
    layers = tuple(range(every.shape.num_layers))
    models = (
        replace(every, window=150, window_layers=layers, is_unordered=False),
        replace(second, window=90, window_layers=layers[::2], is_unordered=False),
    )
    unit = replace(unit, spec=replace(unit.spec, models=models))
    plain, repeated, _ = both(unit, arrivals(120, 6.0))
    assert plain.records.rows.tobytes() == repeated.records.rows.tobytes()
    assert plain.num_jobs == repeated.num_jobs


@pytest.mark.parametrize("until_s", [3.0, 7.7])
def test_a_run_that_is_stopped_has_as_many_tokens(until_s: float) -> None:
    plain, repeated, _ = both(sim_unit(), arrivals(60, 5.0), until_s)
    assert (plain.records.rows["output_tokens"] > 0).any()
    assert plain.records.rows.tobytes() == repeated.records.rows.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["adbs", "mixed", *slow("temporal", "round-robin")])
def test_few_quotas_short_jobs_and_many_periods_change_nothing(lane: str) -> None:
    unit = sim_unit(num_columns=400, max_seqs=8, lane=lane)
    policy = replace(unit.spec.scheduler, quota_period_s=0.37, max_decode_rows=4)
    unit = replace(unit, spec=replace(unit.spec, scheduler=policy))
    plain, repeated, _ = both(unit, arrivals(100, 8.0, seed=3))
    assert plain.records.rows.tobytes() == repeated.records.rows.tobytes()


@pytest.mark.parametrize("lane", LANES)
def test_use_over_time_is_the_same(lane: str) -> None:
    asked = arrivals(80, 4.0)
    unit = sim_unit(lane=lane)
    jobs: list[JobSpan] = []
    plain = simulate([unit], asked, exact=True, on_job=jobs.append, usage_bin_s=0.5).usage["u"]
    repeated = simulate([unit], asked, exact=True, usage_bin_s=0.5).usage["u"]
    assert repeated.sm_share == pytest.approx(plain.sm_share, abs=1e-9)
    assert plain.sm_share.max() > 0.5
    assert repeated.idle_share == pytest.approx(plain.idle_share, abs=1e-9)
    assert (plain.idle_share + plain.sm_share).max() < 1 + 1e-9
    assert (plain.idle_share.max() > 0) == (lane in ("adbs", "round-robin"))
    for name, share in plain.kv_share.items():
        assert repeated.kv_share[name] == pytest.approx(share, abs=0.01 * share.max())


@pytest.mark.parametrize("rate", [*slow(2.0), 8.0, 30.0])
def test_a_unit_that_may_stop_sharing_does_the_same(rate: float) -> None:
    """As the engine builds it for two models on one GPU: the judge's verdicts come in time."""
    unit = sim_unit(num_columns=1500)
    (way, _) = executions(GPUS["A100-80GB"], 1, 2)
    policy = replace(unit.spec.scheduler, lane=way.lane, may_unshare=True)
    unit = replace(unit, spec=replace(unit.spec, workers=way.workers, scheduler=policy))
    plain, repeated, jobs = both(unit, arrivals(300, rate))
    assert {job.phase for job in jobs} == {"mixed", "prefill", "decode"}
    assert plain.records.rows.tobytes() == repeated.records.rows.tobytes()


class Watch:
    """A sink that counts steps by model, and checks the scheduler where it hears of a job."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str], int] = {}
        self.num_entries = 0
        self.share = 0.0

    def first_token(self, request_id: str, now: float) -> None:
        assert request_id

    def end(self, event, now: float) -> None:
        assert event.request_id

    def launched(self, driver: UnitDriver, entries) -> None:
        self.share += sum(entry.job.share for entry in entries)
        assert all(entry.start_s == driver.now for entry in entries)
        assert self.share < 1 + 1e-6

    def ran(self, driver: UnitDriver, entry) -> None:
        self.share -= entry.job.share
        key = entry.job.model, entry.job.phase.value
        self.steps[key] = self.steps.get(key, 0) + entry.num_steps
        self.num_entries += 1


def watched(lane: str, *, exact: bool) -> tuple[Watch, UnitDriver]:
    """A unit's whole day, and it is consistent between any two requests."""
    sink = Watch()
    driver = UnitDriver(sim_unit(lane=lane), sink, exact=exact)
    for arrival in arrivals(80, 4.0):
        driver.advance(arrival.time_s)
        driver.submit(request_of(arrival), arrival.time_s)
        driver.scheduler.check()
    driver.advance(math.inf)
    driver.settle()
    driver.scheduler.check()
    return sink, driver


@pytest.mark.parametrize("lane", ["adbs", "temporal", "mixed"])
def test_the_same_steps_in_a_fraction_of_the_entries(lane: str) -> None:
    (plain, first), (repeated, second) = (watched(lane, exact=exact) for exact in (True, False))
    assert repeated.steps == plain.steps
    assert repeated.num_entries < plain.num_entries / 2
    stats = [driver.scheduler.stats(first.now, "u") for driver in (first, second)]
    assert first.now == second.now
    assert stats[0] == stats[1]
    assert abs(repeated.share) < 1e-6


def waiting_through_a_prefill(*, exact: bool) -> tuple[int, UnitDriver]:
    """How many jobs are told while six requests come during one prefill, and the driver then."""
    sink = Watch()
    timing = FixedTiming(prefill=Work(1.0, 0.1), decode=Work(0.01, 0.1))
    driver = UnitDriver(sim_unit(), sink, timing, exact=exact)
    entries = 0
    for now, model in ((0.0, "a"), (1.5, "b"), *((1.7 + 0.1 * n, "ab"[n % 2]) for n in range(6))):
        driver.advance(now)
        driver.submit(request_of(Arrival(now, f"r{now}", model, 10, 400)), now)
        entries = sink.num_entries if now < 1.75 else entries
    told = sink.num_entries - entries
    driver.advance(math.inf)
    driver.settle()
    return told, driver


def test_a_request_that_only_waits_for_a_prefill_ends_no_repetition() -> None:
    plain, first = waiting_through_a_prefill(exact=True)
    repeated, second = waiting_through_a_prefill(exact=False)
    assert plain > 40
    assert repeated == 0
    assert first.now == second.now
    stats = second.scheduler.stats(second.now, "u")
    assert stats == first.scheduler.stats(first.now, "u")
    assert [model.output_tokens for model in stats.models] == [1600, 1600]
