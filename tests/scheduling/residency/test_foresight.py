"""What past requests let expect, and wakes ahead of it."""

import math
import random

import pytest

from muxcluster.core.request import Slo
from muxcluster.core.residency import MoveKind, Residency
from muxcluster.scheduling.residency.expectation import Expectation
from muxcluster.scheduling.residency.foresight import AHEAD_SHARE, Foreseeing
from muxcluster.scheduling.residency.policy import Standing, Turn, WeightState
from tests.scheduling.residency.world import WAKE_S, TightRig, tight_spec, weighed
from tests.scheduling.rig import request

DAY_S = 86_400.0


def poisson(rng: random.Random, rate: float, start_s: float, end_s: float) -> list[float]:
    times, now = [], start_s
    while (now := now + rng.expovariate(rate)) < end_s:
        times.append(now)
    return times


# What is expected


def test_the_planned_rate_holds_at_first_and_the_measured_one_after_hours() -> None:
    found = Expectation(2.0)
    assert found.rate_per_s(0.0) == pytest.approx(2.0)
    for now in poisson(random.Random(0), 0.2, 0.0, 20_000.0):
        found.arrive(now)
    assert found.rate_per_s(20_000.0) == pytest.approx(0.2 + 1.8 * 600 / 4200, rel=0.2)


def test_a_client_by_a_timer_is_expected_when_its_time_comes() -> None:
    found, rng = Expectation(0.001), random.Random(1)
    for number in range(6):
        for now in (0.0, 0.3, 1.0):  # a visit is a few requests
            found.arrive(600.0 * number + now + rng.uniform(0, 10))
    last_s = 3000.0
    assert found.expected(last_s + 60, 30.0) == 0.0
    assert found.expected(last_s + 560, 30.0) == 1.0
    visit = found.next_visit_s(last_s + 60)
    assert visit is not None and visit[0] < last_s + 600 < visit[1]
    assert found.next_visit_s(last_s + 700)[0] == pytest.approx(last_s + 1140, abs=15)
    assert found.next_visit_s(last_s + 4 * 600) is None, "it came no more"


@pytest.mark.parametrize("seed", range(5))
def test_random_arrivals_are_hardly_ever_taken_for_regular_ones(seed: int) -> None:
    found, num_regular = Expectation(0.02), 0
    times = poisson(random.Random(seed), 0.02, 0.0, 50_000.0)
    for now in times:
        found.arrive(now)
        num_regular += found.next_visit_s(now) is not None
    assert num_regular < 0.02 * len(times)


def test_a_burst_is_expected_to_go_on_for_seconds() -> None:
    found = Expectation(0.001)
    for now in (5000.0, 5001.0, 5002.0):
        found.arrive(now)
    assert found.rate_per_s(5002.5) > 0.1
    assert found.rate_per_s(5030.0) < 0.01


def test_the_second_day_is_expected_like_the_first() -> None:
    """Requests from 8 to 12 alone."""
    found = Expectation(0.01)
    rng = random.Random(3)
    for day in range(2):
        for now in poisson(rng, 0.05, 8 * 3600.0, 12 * 3600.0):
            found.arrive(day * DAY_S + now)
    start_s = 2 * DAY_S
    by_hour = [found.rate_per_s(start_s + 3600 * hour + 1800) for hour in range(24)]
    assert min(by_hour[8:12]) > 0.015
    assert max(by_hour[:8] + by_hour[13:]) < 0.01


def test_nothing_is_known_of_a_day_before_one_has_passed() -> None:
    found = Expectation(0.05)
    for now in poisson(random.Random(3), 0.5, 0.0, 3600.0):
        found.arrive(now)
    assert found.rate_per_s(0.9 * DAY_S) < 0.05, "the hour's rate fades, whatever the time"


def test_long_silence_costs_no_time_and_forgets_the_days_before() -> None:
    found = Expectation(0.01)
    found.arrive(0.0)
    assert 0 <= found.rate_per_s(1e9) <= 0.01


# Whom that wakes


def standing(name: str, **fields) -> Standing:
    given = {"num_bytes": 1, "residency": Residency.ON_DEMAND, "state": WeightState.PARKED}
    given |= {"wake_s": 1.0, "rate_per_s": 0.0, "target_s": 1.0}
    return Standing(name, **{**given, **fields})


def resident(name: str, **fields) -> Standing:
    return standing(name, state=WeightState.RESIDENT, **fields)


def ahead(*models: Standing, free: int = 0, room: int = 4, now: float = 100.0) -> Turn:
    return Foreseeing().ahead(models, free, room, now)


def test_a_likely_one_takes_memory_without_use() -> None:
    turn = ahead(standing("a", expected=1.0), resident("b"), resident("c", expected=0.1))
    assert (turn.wake, turn.victims) == ("a", ("b",))
    assert ahead(standing("a", expected=1.0), free=1).victims == ()


def test_an_unlikely_one_wakes_nobody() -> None:
    assert ahead(standing("a", expected=0.5), resident("b")).wake is None


@pytest.mark.parametrize(
    "change",
    [
        {"is_idle": False},
        {"expected": 0.9},
        {"keeps_until_s": 101.0},
        {"is_pinned": True},
        {"residency": Residency.ALWAYS},
    ],
)
def test_who_has_requests_or_is_expected_as_much_stays(change: dict) -> None:
    assert ahead(standing("a", expected=1.0), resident("b", **change)).wake is None


def test_what_is_woken_ahead_is_bounded_in_bytes() -> None:
    likely = standing("a", expected=3.0)
    held = [resident("b", is_ahead=True), resident("c", is_ahead=True), resident("d")]
    assert ahead(likely, *held, room=6).wake == "a"
    assert ahead(likely, *held, room=int(2 / AHEAD_SHARE)).wake is None


def test_time_alone_wakes_a_regular_client_s_model() -> None:
    turn = ahead(standing("a", visit_s=500.0))
    assert turn.wake is None and 450.0 < turn.next_s < 500.0
    assert ahead(standing("a")).next_s == math.inf


# In a unit


def rig_of(**changes) -> TightRig:
    """Model a, which has room; b and c, which a timer's client asks for."""
    names = [weighed("a", rate_per_s=0.01), weighed("b", rate_per_s=0.005, slo=Slo(0.5, 1.0))]
    return TightRig(tight_spec(names, 1, wakes="foresight"), **changes)


def wait(rig: TightRig, until_s: float) -> None:
    while rig.now < until_s:
        rig.launch()
        wakeup_s = rig.scheduler.next_wakeup(rig.now)
        if rig.running or rig.moving or (wakeup_s is not None and wakeup_s < until_s):
            rig.step()
        else:
            rig.now = until_s


def run_by_timer(rig: TightRig, num_visits: int, period_s: float = 100.0) -> None:
    """Every period a request for b, half a period later one for a."""
    start_s = rig.now
    for number in range(2 * num_visits):
        until_s = start_s + number * period_s / 2
        wait(rig, until_s)
        rig.add(request(f"{number}", "ba"[number % 2]))
    rig.run()


def test_requests_of_regular_clients_find_their_models_awake() -> None:
    rig = rig_of()
    run_by_timer(rig, 12)
    waits = [rig.ends[f"{number}"].waking_s for number in range(24)]
    assert all(wait > WAKE_S / 2 for wait in waits[2:8]), "nothing is known yet"
    assert waits[12:] == [0.0] * 12
    found = {each.name: each for each in rig.scheduler.stats(rig.now, "u").models}
    ahead = sum(each.num_wakes_ahead for each in found.values())
    used = sum(each.num_wakes_ahead_used for each in found.values())
    assert 12 <= used <= ahead <= used + 2
    assert rig.kinds("a").count(MoveKind.WAKE) == pytest.approx(12, abs=1)


def test_a_wake_ahead_that_nobody_used_counts_as_such() -> None:
    rig = rig_of()
    run_by_timer(rig, 8)
    wait(rig, rig.now + 1000.0)  # b's client comes no more
    rig.add(request("last", "a"))
    rig.run()
    found = rig.scheduler.stats(rig.now, "u").models
    assert sum(each.num_wakes_ahead - each.num_wakes_ahead_used for each in found) >= 1


def test_without_foresight_nothing_is_woken_ahead_for_them() -> None:
    rig = rig_of()
    rig = TightRig(tight_spec(rig.spec.models, 1))
    run_by_timer(rig, 6)
    assert all(rig.ends[f"{number}"].waking_s > 0 for number in range(2, 12))
