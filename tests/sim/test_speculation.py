"""Speculation in the simulator: the scheduler's own code, with a chance that drafts are right."""

import math
from dataclasses import replace

import pytest

from muxcluster.core.unitspec import SpeculationSpec
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.requests import request_of
from muxcluster.workload.arrival import Arrival
from tests.sim.cases import sim_unit
from tests.sim.test_driver import Log


def unit_of(acceptance: float | None, lane: str, *, depth: int = 1) -> SimUnit:
    """One model; None: without speculation."""
    unit = sim_unit(models=("a",), lane=lane, max_seqs=256)
    speculation = None if acceptance is None else SpeculationSpec(acceptance=acceptance)
    models = tuple(replace(each, speculation=speculation) for each in unit.spec.models)
    scheduler = replace(unit.spec.scheduler, pipeline_depth=depth)
    return replace(unit, spec=replace(unit.spec, models=models, scheduler=scheduler))


def end_s(unit: SimUnit, count: int, *, exact: bool = True) -> tuple[float, int]:
    """When `count` requests that come together have ended, and the draft tokens."""
    log = Log()
    driver = UnitDriver(unit, log, exact=exact)
    for number in range(count):
        driver.submit(request_of(Arrival(0.0, f"r{number}", "a", 64, 200)), 0.0)
    driver.advance(math.inf)
    driver.scheduler.check()
    assert len(log.ends) == count
    stats = driver.scheduler.stats(driver.now, "u").models[0]
    assert stats.num_accepted_tokens <= stats.num_draft_tokens
    return max(log.ends.values()), stats.num_draft_tokens


@pytest.mark.parametrize("lane", ["mixed", "temporal", "adbs"])
def test_drafts_that_are_mostly_right_gain(lane: str) -> None:
    plain_s, none = end_s(unit_of(None, lane), 4)
    faster_s, drafted = end_s(unit_of(0.8, lane), 4)
    assert none == 0 < drafted
    assert faster_s < 0.6 * plain_s


def test_drafts_that_are_never_right_cost_little() -> None:
    plain_s, _ = end_s(unit_of(None, "mixed"), 4)
    slower_s, drafted = end_s(unit_of(0.02, "mixed"), 4)
    assert drafted > 0
    assert slower_s < 1.05 * plain_s


def test_without_acceptance_nothing_is_guessed() -> None:
    assert end_s(unit_of(0.0, "mixed"), 4) == end_s(unit_of(None, "mixed"), 4)


def test_more_requests_have_fewer_drafts_each() -> None:
    _, few = end_s(unit_of(0.6, "mixed"), 2)
    _, many = end_s(unit_of(0.6, "mixed"), 200)
    assert many / 200 < few / 2


@pytest.mark.parametrize("exact", [True, False])
def test_steps_are_never_skipped_over(exact: bool) -> None:
    """A fast simulation has the same ends."""
    assert end_s(unit_of(0.7, "mixed"), 8, exact=exact) == end_s(unit_of(0.7, "mixed"), 8)
