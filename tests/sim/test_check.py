"""Simulated units show what plans predict of them."""

from dataclasses import replace

import pytest

from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.assess import assess
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.check import Span, check_plan, span_of

SPAN = Span(warmup_s=30.0, window_s=60.0, drain_s=60.0)


def problem_of(*models: tuple[str, float, int, int], gpus: int = 1) -> Problem:
    demands = tuple(
        Demand(f"m{index}", SHAPES[shape], rate, prompt, output, 4096, 128, ttft_s=1.0, tpot_s=0.1)
        for index, (shape, rate, prompt, output) in enumerate(models)
    )
    return Problem(demands, (Node("n", gpus, GPUS["A100-80GB"]),))


@pytest.mark.parametrize(
    "models",
    [
        [("llama-3.1-8b", 4.0, 512, 128)],
        [("llama-2-13b", 3.0, 161, 338)],
        [("llama-3.1-8b", 12.0, 256, 64), ("qwen2.5-7b", 3.0, 512, 128)],
    ],
)
def test_latencies_are_those_of_the_simulation(models) -> None:
    """Within a quarter for the medians, a half for the 95th percentiles of time per token, and a
    factor of two for those of first tokens: the sample has a few hundred requests."""
    asked = replace(problem_of(*models), policy=UnitPolicy(partition="none"))
    plan = place(asked, time_limit_s=0.0)
    found = check_plan(asked, plan, SPAN)
    for report in (model for unit in assess(asked, plan) for model in unit.models):
        seen = found.models[report.name]
        assert report.share == 1.0
        assert report.tpot_s.median == pytest.approx(seen.tpot_s[0], rel=0.25)
        assert report.tpot_s.high == pytest.approx(seen.tpot_s[1], rel=0.5)
        assert 0.5 < report.ttft_s.high / seen.ttft_s[1] < 2.5
        assert seen.within > 0.95


def test_a_unit_that_shares_sms_keeps_what_either_way_of_running_promises() -> None:
    asked = problem_of(("llama-3.1-8b", 4.0, 256, 64), ("qwen2.5-7b", 1.0, 512, 128))
    plan = place(asked, time_limit_s=0.0)
    assert plan.units[0].execution is not None and plan.units[0].execution.may_unshare
    found = check_plan(asked, plan, SPAN)
    for report in (model for unit in assess(asked, plan) for model in unit.models):
        seen = found.models[report.name]
        assert seen.tpot_s[1] <= 1.1 * report.tpot_s.high
        assert seen.ttft_s[1] <= 1.5 * report.ttft_s.high
        assert seen.within > 0.95


def test_an_overloaded_unit_serves_what_was_planned() -> None:
    asked = problem_of(("llama-3.1-8b", 60.0, 256, 128))
    plan = place(asked, time_limit_s=0.0)
    found = check_plan(asked, plan, SPAN)
    assert plan.throughput < 60
    assert plan.throughput == pytest.approx(found.total.served_per_s, rel=0.1)
    assert found.total.within < 0.5


def test_what_nobody_asked_in_the_window_is_no_failure() -> None:
    asked = problem_of(("llama-3.1-8b", 2.0, 64, 16), ("qwen2.5-7b", 1e-6, 64, 16))
    plan: Plan = place(asked, time_limit_s=0.0)
    rare = check_plan(asked, plan, Span(5.0, 10.0, 10.0)).models["m1"]
    assert (rare.num_requests, rare.ended, rare.within) == (0, 1.0, 1.0)


def test_spans_hold_enough_requests_but_end() -> None:
    few, many = problem_of(("llama-3.1-8b", 0.1, 64, 16)), problem_of(("llama-3.1-8b", 50, 64, 338))
    assert span_of(few).window_s == 240
    assert span_of(many).window_s == 30
    assert span_of(many).warmup_s > span_of(few).warmup_s
    slower = replace(many, demands=(replace(many.demands[0], rate=5.0),))
    assert 30 < span_of(slower).window_s < 240
