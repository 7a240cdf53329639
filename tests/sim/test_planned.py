"""Plans become units with the plan's memory, the GPU's rungs and the lane's workers."""

from dataclasses import replace

import pytest

from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import shortest_wait, simulate
from tests.sim.cases import arrivals

PROBLEM = Problem(
    tuple(Demand(name, SHAPES["llama-7b"], 4.0, 161, 338, 2048, 128) for name in "ab"),
    (Node("n", 2, GPUS["A100-80GB"]),),
)


@pytest.mark.parametrize("lane", ["adbs", "round-robin", "temporal", "mixed"])
def test_a_plan_runs_under_every_lane(lane: str) -> None:
    asked = replace(PROBLEM, policy=UnitPolicy(SchedulerSpec(lane=lane, may_unshare=True)))
    plan = place(asked)
    units = units_of(plan, asked)
    for unit, planned in zip(units, plan.units, strict=True):
        assert unit.spec.num_blocks * unit.tp == planned.kv_blocks
        assert unit.tp == planned.tp
        may_share = lane in ("adbs", "round-robin") and unit.tp == 1 and len(planned.models) > 1
        if not may_share:
            assert [worker.shares for worker in unit.spec.workers] == [(1.0,)]
            assert unit.spec.scheduler.lane == ("mixed" if lane == "adbs" else lane)
    for name in "ab":
        rates = [m.rate_per_s for unit in units for m in unit.spec.models if m.name == name]
        assert sum(rates) == pytest.approx(4.0)
    assert len(simulate(units, arrivals(20, 8.0)).records) == 20


def test_the_shortest_wait_counts_what_waits_and_how_fast_it_goes() -> None:
    assert shortest_wait([100.0, 100.0], [1.0, 2.0], 10.0) == 1
    assert shortest_wait([100.0, 500.0], [1.0, 2.0], 10.0) == 0
    assert shortest_wait([0.0, 0.0], [1.0, 1.0], 10.0) == 0
