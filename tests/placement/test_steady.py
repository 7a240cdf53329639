"""Steady states: cycles add up, rows follow Little's law, what cannot be served waits outside."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.estimator import Estimator, Tenant
from muxcluster.placement.estimator.beside import gain_over_mixed
from muxcluster.placement.estimator.latency import latencies, served_rates
from muxcluster.placement.estimator.turns import steady
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.review.assess import assess
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.check import check_plan, span_of

A100 = GPUS["A100-80GB"]
SMALL = ("llama-2-7b", "llama-2-13b", "qwen2.5-7b", "llama-3.2-1b")
MIXES = st.lists(st.tuples(st.sampled_from(SMALL), st.floats(0.01, 60)), min_size=1, max_size=4)


def tenants_of(mix: list[tuple[str, float]]) -> tuple[Tenant, ...]:
    demands = tuple(
        Demand(f"m{index}", SHAPES[shape], rate, 161, 338, 2048, 128)
        for index, (shape, rate) in enumerate(mix)
    )
    estimator = Estimator(Problem(demands, (Node("n", 2, A100),)))
    unit = estimator.unit(A100, 2, [(index, rate) for index, (_, rate) in enumerate(mix)])
    assert unit is not None
    return unit.tenants


@settings(max_examples=100)
@given(mix=MIXES)
def test_the_cycle_is_the_sum_of_its_jobs(mix) -> None:
    tenants = tenants_of(mix)
    turns = steady(tenants, [rate for _, rate in mix])
    whole = sum(turn.busy * turn.job_s for turn in turns)
    for tenant, turn, (_, rate) in zip(tenants, turns, mix, strict=True):
        assert turn.cycle_s == pytest.approx(whole + (1 - turn.busy) * turn.job_s, rel=0.02)
        assert turn.rows == pytest.approx(turn.rate * 338 * turn.cycle_s, rel=1e-6)
        assert turn.rows <= tenant.rows * (1 + 1e-9)
        assert turn.rate <= rate
        if turn.rate < rate * (1 - 1e-6):
            tokens = turn.rows + turn.rate * turn.cycle_s * 161
            assert turn.rows == pytest.approx(tenant.rows) or tokens == pytest.approx(2048)


@settings(max_examples=50)
@given(mix=MIXES, factor=st.floats(1.05, 4))
def test_more_requests_make_cycles_longer(mix, factor) -> None:
    tenants = tenants_of(mix)
    rates = [rate for _, rate in mix]
    before, after = steady(tenants, rates), steady(tenants, [rate * factor for rate in rates])
    for low, high in zip(before, after, strict=True):
        # a model that is hardly there sees a longer cycle when it comes rarely: with its own job
        assert high.cycle_s >= low.cycle_s * 0.97 or low.busy < 0.9


def test_a_light_model_keeps_its_rate_beside_an_overloaded_one() -> None:
    """Models take turns, so what is overloaded waits alone."""
    tenants = tenants_of([("llama-2-7b", 60.0), ("llama-2-13b", 0.5)])
    heavy, light = steady(tenants, [60.0, 0.5])
    assert heavy.rate < 30
    assert light.rate == 0.5


@pytest.mark.parametrize("lane", ["adbs", "temporal", "round-robin"])
def test_prompts_in_jobs_of_their_own_serve_what_comes(lane: str) -> None:
    policy = UnitPolicy(SchedulerSpec(lane=lane))
    for rate, is_served in ((1.0, True), (200.0, False)):
        demands = tuple(
            Demand(f"m{i}", SHAPES["llama-2-7b"], rate, 161, 338, 2048, 64) for i in "ab"
        )
        mine = Estimator(Problem(demands, (Node("n", 1, A100),), policy=policy))
        unit = mine.unit(A100, 1, [(0, rate), (1, rate)])
        assert unit is not None
        assert not unit.loads.is_mixed
        served = served_rates(unit.tenants, unit.loads, [rate, rate])
        assert (served == [rate, rate]) is is_served
        assert (min(unit.served) == 1.0) is is_served is (unit.load <= 1)


@pytest.mark.parametrize(
    ("changes", "limits", "says"),
    [
        ({"max_seqs": 8}, Limits(), "8 rows (max_seqs) of m"),
        ({"max_seqs": 17}, Limits(), "16 rows (max_decode_rows) of m"),
        ({"max_seqs": 256}, Limits(kv_bytes=2**29), "KV for "),
        ({"max_seqs": 256, "prompt_tokens": 2000, "output_tokens": 4}, Limits(), "SM time"),
    ],
)
def test_a_limit_is_named_by_what_binds(changes, limits, says) -> None:
    fields = {"prompt_tokens": 32, "output_tokens": 400, "max_model_len": 4096, **changes}
    demand = Demand("m", SHAPES["llama-3.2-1b"], 2000.0, **fields)
    policy = UnitPolicy(SchedulerSpec(max_decode_rows=16 if demand.max_seqs == 17 else 256))
    problem = Problem((demand,), (Node("n", 1, A100),), limits, policy=policy)
    (report,) = assess(problem, place(problem, time_limit_s=0.0))
    assert report.limit.startswith(says)


def test_a_unit_that_gains_by_sharing_is_not_promised_the_waits_of_mixed_jobs() -> None:
    """As mixed jobs these would fill a model's rows, for which others wait for seconds."""
    shapes, rates = ("llama-3.2-3b", "llama-2-13b"), (4.7, 1.0)
    demands = tuple(
        Demand(shape, SHAPES[shape], rate, 161, 338, 4096, 64)
        for shape, rate in zip(shapes, rates, strict=True)
    )
    problem = Problem(demands, (Node("n", 1, A100),))
    unit = Estimator(problem).unit(A100, 1, tuple(enumerate(rates)))
    assert unit is not None
    assert unit.loads.other is not None
    assert gain_over_mixed(unit.tenants, unit.loads, rates) > 1.2
    mixed = latencies(unit.tenants, replace(unit.loads.other, other=None), (1.0, 1.0))
    (observed,) = (
        check_plan(problem, place(problem, time_limit_s=0.0), span_of(problem)).models[shape]
        for shape in shapes[:1]
    )
    promised = unit.latencies()[0].ttft_s
    assert promised.high < 3 * observed.ttft_s[1] < mixed[0].ttft_s.high


def test_masks_make_full_steps_longer_and_small_ones_not() -> None:
    demand = Demand("free", SHAPES["llama-3.2-3b"], 1.0, 161, 338, 2048, 256)
    both = (demand, replace(demand, name="held", constrained_share=1.0))
    estimator = Estimator(Problem(both, (Node("n", 1, A100),)))
    free, held = (estimator.model(index, A100, 1, 2 * 128 * 16 * 2) for index in (0, 1))
    assert held.step_at(1, 1.0) == free.step_at(1, 1.0)
    assert held.step_at(256, 1.0) == pytest.approx(256 * 1.9e-4)
    assert held.step_at(256, 1.0) > free.step_at(256, 1.0)
