"""Hand-computed timelines of one unit."""

import math

import pytest

from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.timing import Work
from muxcluster.sim.demand.requests import request_of
from muxcluster.workload.arrival import Arrival
from tests.sim.cases import FixedTiming, sim_unit


class Log:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.firsts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.jobs: list[tuple[str, str, int, float, float]] = []

    def first_token(self, request_id: str, now: float) -> None:
        self.firsts.setdefault(request_id, now)

    def end(self, event, now: float) -> None:
        self.ends[event.request_id] = now

    def launched(self, driver: UnitDriver, entries) -> None:
        assert all(entry.start_s == driver.now for entry in entries)

    def ran(self, driver: UnitDriver, entry) -> None:
        job = entry.job
        self.jobs.append((job.model, job.phase.value, entry.num_steps, entry.start_s, driver.now))


def run(asked: list[Arrival], *, exact: bool, lane: str = "temporal") -> Log:
    """One unit without interference: a prefill takes 1 s, a decode step 0.1 s."""
    log = Log()
    timing = FixedTiming(Work(1.0, 0.0), Work(0.1, 0.0))
    driver = UnitDriver(sim_unit(lane=lane), log, timing, exact=exact)
    for arrival in asked:
        driver.advance(arrival.time_s)
        driver.submit(request_of(arrival), arrival.time_s)
    driver.advance(math.inf)
    driver.scheduler.check()
    return log


@pytest.mark.parametrize("exact", [True, False])
def test_one_request_takes_a_prefill_and_a_step_per_further_token(exact: bool) -> None:
    log = run([Arrival(2.0, "r", "a", 100, 11)], exact=exact)
    assert log.firsts == {"r": pytest.approx(3.0)}
    assert log.ends == {"r": pytest.approx(4.0)}
    assert sum(steps for _, phase, steps, *_ in log.jobs if phase == "decode") == 10
    assert len(log.jobs) == (11 if exact else 3)


@pytest.mark.parametrize("exact", [True, False])
def test_a_prompt_waits_for_the_step_that_runs_and_no_longer(exact: bool) -> None:
    asked = [Arrival(0.0, "r", "a", 100, 101), Arrival(2.35, "s", "a", 100, 2)]
    log = run(asked, exact=exact)
    # r decodes from 1.0 on; its step ends at 2.4, then s is prefilled until 3.4
    assert log.firsts["s"] == pytest.approx(3.4)
    assert log.ends["s"] == pytest.approx(3.5)
    assert log.ends["r"] == pytest.approx(1.0 + 100 * 0.1 + 1.0)


def test_arrivals_at_the_moment_of_an_end_are_in_the_next_job() -> None:
    asked = [Arrival(0.0, "r", "a", 10, 1), *(Arrival(1.0, f"s{i}", "a", 10, 1) for i in range(3))]
    log = run(asked, exact=True)
    assert [job[0:2] for job in log.jobs] == [("a", "prefill")] * 2
    assert list(log.ends.values()) == pytest.approx([1.0, 2.0, 2.0, 2.0])
