"""What a unit can run, from GPU kind, width, partition, models and policy."""

from dataclasses import replace

import pytest

from muxcluster.core.job import Phase
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.execution import (
    CannotRun,
    UnitPolicy,
    execution_of,
    executions,
    planned,
)
from muxcluster.placement.hardware import GIB, GPUS, WHOLE, Gpu, cpu
from muxcluster.placement.memory import kv_blocks, usable_bytes
from muxcluster.placement.plan import Plan, PlannedExecution
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES

A100 = GPUS["A100-80GB"]
NOT_DIVIDED = replace(A100, shares=WHOLE)
ALWAYS = SchedulerSpec(may_unshare=False)


def cores(number: int) -> Gpu:
    return cpu(number, 64 * GIB)


@pytest.mark.parametrize(
    ("gpu", "tp", "num_models", "policy", "ways"),
    [
        # (lane, partition, workers, depth, unproven) of each way; with several models the first
        # one is shared if any is
        (A100, 1, 2, {}, [("adbs", "auto", 3, 2, False), ("mixed", "none", 1, 2, False)]),
        (A100, 2, 2, {}, [("adbs", "auto", 2, 2, True), ("mixed", "none", 1, 1, False)]),
        (A100, 4, 5, {}, [("adbs", "auto", 2, 2, True), ("mixed", "none", 1, 1, False)]),
        (A100, 1, 1, {}, [("mixed", "none", 1, 2, False), ("adbs", "auto", 2, 2, False)]),
        (A100, 1, 1, {"scheduler": ALWAYS}, [("mixed", "none", 1, 2, False)]),
        (A100, 2, 1, {}, [("mixed", "none", 1, 1, False)]),
        (A100, 2, 1, {"partition": "green"}, [("adbs", "green", 2, 2, True)]),
        (A100, 2, 3, {"partition": "none"}, [("mixed", "none", 1, 1, False)]),
        (A100, 2, 3, {"scheduler": ALWAYS}, [("adbs", "auto", 2, 2, True)]),
        (
            A100,
            2,
            2,
            {"pipeline_depth": 2, "partition": "none"},
            [("mixed", "none", 1, 2, True)],
        ),
        (
            A100,
            2,
            2,
            {"scheduler": SchedulerSpec(lane="round-robin")},
            [("round-robin", "auto", 2, 2, True)],
        ),
        (
            A100,
            2,
            2,
            {"scheduler": SchedulerSpec(lane="temporal")},
            [("temporal", "none", 1, 1, False)],
        ),
        (NOT_DIVIDED, 2, 2, {}, [("mixed", "none", 1, 1, False)]),
        (cores(4), 2, 2, {}, [("adbs", "threads", 2, 1, False)]),
        (cores(2), 2, 2, {}, [("mixed", "none", 1, 1, False)]),  # one core a rank
        (cores(2), 1, 2, {}, [("adbs", "threads", 2, 2, False)]),
        (cores(2), 2, 2, {"num_threads": 8}, [("adbs", "threads", 2, 1, False)]),
        (cores(8), 4, 2, {"partition": "none"}, [("mixed", "none", 1, 1, False)]),
        (cores(8), 4, 1, {}, [("mixed", "none", 1, 1, False)]),
        (cores(8), 4, 2, {"pipeline_depth": 2}, [("adbs", "threads", 2, 2, False)]),
    ],
)
def test_ways_to_run(gpu: Gpu, tp: int, num_models: int, policy: dict, ways: list) -> None:
    found = executions(gpu, tp, num_models, UnitPolicy(**policy))
    assert [
        (each.lane, each.partition, len(each.workers), each.pipeline_depth, each.is_unproven)
        for each in found
    ] == ways
    for each in found:
        assert each.num_ranks == tp
        assert each.num_communicators == (len(each.workers) if tp > 1 else 0)
        assert each.shares_sms == (len(each.workers) > 1)
        for phase in (Phase.PREFILL, Phase.DECODE):
            assert each.num_workers(phase) > 0


def test_mps_is_refused_over_several_gpus() -> None:
    with pytest.raises(CannotRun, match="over 4 GPUs shares SMs by green contexts") as caught:
        executions(A100, 4, 2, UnitPolicy(partition="mps"))
    assert caught.value.key == "partition"
    with pytest.raises(CannotRun, match="cannot be had on this node"):
        executions(NOT_DIVIDED, 4, 2, UnitPolicy(partition="green"))


def test_a_wide_unit_has_one_context_and_a_communicator_a_worker() -> None:
    """On each GPU; one GPU has a context a rung under MPS, and no communicator."""
    narrow, wide = (executions(A100, tp, 2)[0] for tp in (1, 2))
    assert narrow.num_contexts == 1 + 3 + 4 + 4
    assert wide.num_contexts == 1
    alone = executions(A100, 2, 2)[1]
    per_gpu = (usable_bytes(A100, 2, alone) - usable_bytes(A100, 2, wide)) // 2
    assert per_gpu == GIB // 4


def demand(name: str, shape: str, rate: float) -> Demand:
    return Demand(name, SHAPES[shape], rate, 161.0, 338.0, 2048, 64)


def wide_problem(policy: UnitPolicy, gpu: Gpu = A100) -> Problem:
    """A model that needs four GPUs, and a small one."""
    demands = (demand("large", "llama-3.1-70b", 1.0), demand("small", "llama-3.1-8b", 1.0))
    return Problem(demands, (Node("n", 4, gpu),), policy=policy)


def planned_wide(problem: Problem) -> tuple[Plan, PlannedExecution]:
    found = place(problem)
    (unit,) = found.units
    assert unit.tp == 4
    assert unit.execution is not None
    (node,) = problem.nodes
    way = execution_of(node.gpu, unit, problem.policy)
    assert planned(way) == unit.execution
    assert unit.kv_blocks == kv_blocks(node.gpu, 4, problem.demands, problem.limits, way)
    return found, unit.execution


def test_a_plan_says_that_no_gpus_have_run_it() -> None:
    found, execution = planned_wide(wide_problem(UnitPolicy(scheduler=ALWAYS)))
    assert execution.unproven
    assert execution.lane == "adbs"
    assert '"unproven": true' in found.to_json()
    assert Plan.model_validate_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("policy", "gpu"),
    [
        (UnitPolicy(partition="none", scheduler=ALWAYS), A100),
        (UnitPolicy(scheduler=ALWAYS), NOT_DIVIDED),
    ],
)
def test_the_planner_knows_where_sms_cannot_be_shared(policy: UnitPolicy, gpu: Gpu) -> None:
    found, execution = planned_wide(wide_problem(policy, gpu))
    assert (execution.lane, execution.unproven) == ("mixed", False)
    assert '"unproven": true' not in found.to_json()
    assert all(model.prefill_sm == 1.0 for unit in found.units for model in unit.models)


def test_prefills_of_a_single_model_have_a_larger_share_beside_decodes() -> None:
    (alone,) = executions(A100, 1, 1, UnitPolicy(partition="mps"))
    (several,) = executions(A100, 1, 2, UnitPolicy(partition="mps"))
    assert alone.rungs(Phase.PREFILL) == (0.3, 0.5, 0.7, 1.0)
    assert several.rungs(Phase.PREFILL) == (0.3, 0.5, 1.0)
    assert 0.3 in alone.rungs(Phase.DECODE)  # beside the largest
