"""What a request for a parked model would wait, and cost others: the router chooses by it."""

import pytest

from muxcluster.core.residency import Residency, WeightOrder
from tests.scheduling.residency.world import (
    WAKE_S,
    TightRig,
    run_to_a_wake,
    tight_spec,
    weighed,
)
from tests.scheduling.rig import request


def rig_of(*models, room: int) -> TightRig:
    return TightRig(tight_spec(models, room))


def outlook(rig: TightRig, model: str) -> tuple[float, float]:
    return tuple(rig.scheduler.outlook(model, rig.now))


def test_who_is_resident_waits_for_nothing() -> None:
    rig = rig_of(weighed("a", rate_per_s=2.0), weighed("b"), room=1)
    assert outlook(rig, "a") == (0.0, 0.0)


def test_free_memory_costs_nobody_anything() -> None:
    on_demand = {"residency": Residency.ON_DEMAND}
    rig = rig_of(weighed("a", **on_demand), weighed("b", **on_demand), room=2)
    assert outlook(rig, "b") == (WAKE_S, 0.0)


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_an_idle_model_that_would_leave_costs_by_its_rate(rate: float) -> None:
    models = [weighed("a", rate_per_s=rate), weighed("b", rate_per_s=0.001)]
    rig = rig_of(*models, room=1)
    wait_s, cost_s = outlook(rig, "b")
    assert wait_s == WAKE_S
    # away for the wake and the stay of b, at least 0.5 s, and then for its own wake
    away_s = WAKE_S + 0.5
    assert cost_s == pytest.approx(rate * away_s * (away_s / 2 + WAKE_S), rel=0.4)
    told = next(each for each in rig.scheduler.stats(rig.now, "u").models if each.name == "b")
    assert (told.expected_wait_s, told.wake_cost_s) == (wait_s, cost_s)


def test_one_with_requests_stays_first_and_costs_more() -> None:
    rig = rig_of(weighed("a", rate_per_s=0.1), weighed("b", rate_per_s=0.001), room=1)
    idle_s, idle_cost_s = outlook(rig, "b")
    rig.add(request("1", "b"))
    run_to_a_wake(rig)
    rig.end_move()
    rig.add(request("2", "b", num_output=50))
    rig.launch()
    wait_s, cost_s = outlook(rig, "a")
    assert wait_s > idle_s + 0.3, "the least stay, and a drain"
    assert cost_s > 2 * idle_cost_s
    rig.run()


def test_who_is_about_to_leave_is_not_at_hand() -> None:
    rig = rig_of(weighed("a", rate_per_s=1.0), weighed("b"), room=1)
    rig.add(request("1", "a", num_output=50))
    rig.step()
    rig.step()
    rig.order("a", WeightOrder.PARK)
    rig.launch()
    assert "a" in rig.resident
    assert outlook(rig, "a")[0] > 0
    rig.run()


def test_a_wake_under_way_and_requests_that_wait_already_cost_nothing_more() -> None:
    models = [weighed("a", rate_per_s=1.0), weighed("b"), weighed("c")]
    rig = rig_of(*models, room=1)
    rig.add(request("1", "b"), request("2", "c"))
    run_to_a_wake(rig)
    wait_s, cost_s = outlook(rig, "b")
    assert wait_s == pytest.approx(WAKE_S) and cost_s == 0.0
    assert outlook(rig, "c")[1] == 0.0
    rig.run()


def test_wakes_that_others_wait_for_come_first() -> None:
    names = ("a", "b", "c", "d")
    rig = rig_of(*(weighed(name, rate_per_s=0.001) for name in names), room=1)
    rig.add(request("1", "b"))
    run_to_a_wake(rig)
    one_s, _ = outlook(rig, "d")
    rig.add(request("2", "c"))
    two_s, _ = outlook(rig, "d")
    assert two_s == pytest.approx(one_s + WAKE_S, abs=0.1)
