"""Units are estimated as documented: memory, loads, fairness, latency; and monotone in rates."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.estimator import BATCHES, Estimator
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import kv_blocks
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES

A100 = GPUS["A100-80GB"]
SMALL = ("llama-2-7b", "llama-2-13b", "qwen2.5-7b", "mistral-7b")


def demand(name: str, shape: str = "llama-2-7b", rate: float = 1.0, **changes) -> Demand:
    fields = {"prompt_tokens": 161, "output_tokens": 338, "max_model_len": 2048, "max_seqs": 512}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


def estimator(*demands: Demand, **changes) -> Estimator:
    return Estimator(Problem(tuple(demands), (Node("a", 8, A100),), **changes))


def offers(found: Estimator, factor: float = 1.0) -> tuple[tuple[int, float], ...]:
    return tuple((index, each.rate * factor) for index, each in enumerate(found.problem.demands))


MIXES = st.lists(st.tuples(st.sampled_from(SMALL), st.floats(0.05, 40)), min_size=1, max_size=4)


def made(mix, **changes) -> Estimator:
    return estimator(*(demand(f"m{i}", s, rate) for i, (s, rate) in enumerate(mix)), **changes)


@settings(max_examples=100)
@given(mix=MIXES, tp=st.sampled_from([2, 4]))
def test_the_pool_is_that_of_the_memory_module(mix, tp) -> None:
    """Two ways to the same number: memoised parts, and the module that words refusals."""
    mine = made(mix)
    unit = mine.unit(A100, tp, offers(mine))
    assert unit is not None
    demands = mine.problem.demands
    assert unit.kv_blocks == kv_blocks(A100, tp, demands, mine.problem.limits, unit.execution)
    assert sum(unit.quotas) == unit.kv_blocks
    for tenant, quota in zip(unit.tenants, unit.quotas, strict=True):
        assert tenant.batch in BATCHES
        assert tenant.batch == 1 or tenant.batch * tenant.cost.sequence_blocks <= quota


@settings(max_examples=100)
@given(mix=MIXES)
def test_what_is_served_never_overfills_a_resource(mix) -> None:
    mine = made(mix)
    unit = mine.unit(A100, 2, offers(mine))
    assert unit is not None
    for part in (unit.loads.prefill, unit.loads.sms, unit.loads.bandwidth):
        used = sum(load * share for load, share in zip(part, unit.served, strict=True))
        assert used <= 1 + 1e-9
    for lane, share in zip(unit.loads.lanes, unit.served, strict=True):
        assert lane * share <= 1 + 1e-9
    assert unit.load <= 1 or min(unit.served) < 1
    assert unit.load > 1 or unit.served == (1.0,) * len(unit.served)


@settings(max_examples=60)
@given(mix=MIXES, which=st.integers(0, 3), factor=st.floats(1.01, 5))
def test_raising_a_rate_raises_no_other_models_throughput(mix, which, factor) -> None:
    """Beyond the rungs of batches and SM shares, as long as the unit runs in the same way: mixed
    jobs and shared SMs divide an overload differently."""
    mine = made(mix)
    which %= len(mix)
    raised = tuple(
        (index, rate * factor if index == which else rate) for index, rate in offers(mine)
    )
    before, after = mine.unit(A100, 2, offers(mine)), mine.unit(A100, 2, raised)
    assert before is not None and after is not None
    assume(before.execution == after.execution)
    for index in range(len(mix)):
        if index != which:
            assert after.served[index] <= before.served[index] * 1.2 + 1e-9


@settings(max_examples=100)
@given(mix=MIXES, factor=st.floats(0.1, 0.99))
def test_less_demand_is_no_more_throughput(mix, factor) -> None:
    mine = made(mix)
    full, less = mine.unit(A100, 2, offers(mine)), mine.unit(A100, 2, offers(mine, factor))
    assert full is not None
    assert less is not None
    # Models take turns: where all are overloaded, those with long steps take more of the time than
    # their part of the requests, and fewer requests are served in all.
    assert less.throughput <= full.throughput * 1.5


def test_prefill_beside_decode_serves_more_than_in_turns() -> None:
    """Why units share SMs: compute-bound prefill beside bandwidth-bound decode."""
    many = {"rate": 50.0, "prompt_tokens": 900, "output_tokens": 150, "max_seqs": 16}
    both = demand("a", **many), demand("b", **many)
    values = {}
    for lane in ("adbs", "temporal"):
        mine = estimator(*both, policy=UnitPolicy(SchedulerSpec(lane=lane)))
        unit = mine.unit(A100, 1, offers(mine))
        assert unit is not None
        assert unit.loads.shared == unit.execution.shares_sms == (lane == "adbs")
        assert unit.loads.shared == (unit.loads.prefill_share < 1)
        values[lane] = unit.value
        if unit.loads.shared:
            assert unit.loads.prefill_share + max(unit.loads.decode_shares) <= 1 + 1e-9
    assert values["adbs"] > values["temporal"]


def test_a_model_that_loses_its_targets_has_no_goodput() -> None:
    slow = demand("a", "llama-2-13b", ttft_s=1e-4, tpot_s=1.0)
    fast = demand("b", ttft_s=5.0, tpot_s=0.5)
    mine = estimator(slow, fast, objective="goodput")
    unit = mine.unit(A100, 1, offers(mine))
    assert unit is not None
    assert unit.value == pytest.approx(fast.rate)


def test_goodput_falls_as_the_target_tightens() -> None:
    values = []
    for tpot_s in (1.0, 0.05, 0.03, 0.02, 0.001):
        mine = estimator(demand("a", rate=60.0, tpot_s=tpot_s), objective="goodput")
        unit = mine.unit(A100, 1, offers(mine))
        assert unit is not None
        values.append(unit.value)
        served = [share * each.rate for share, each in zip(unit.served, unit.tenants, strict=True)]
        assert unit.value <= sum(served) + 1e-9
        assert tpot_s < 0.01 or unit.latencies()[0].tpot_s.high <= tpot_s
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(values))
    assert values[0] > 0 == values[-1]


def test_latency_grows_with_load() -> None:
    mine = estimator(demand("a", rate=1.0))
    found = [mine.unit(A100, 1, [(0, rate)]).latencies()[0] for rate in (0.1, 1.0, 4.0, 8.0)]
    assert all(a.ttft_s.high <= b.ttft_s.high + 1e-9 for a, b in pairwise(found))
    assert all(a.batch <= b.batch + 1e-9 for a, b in pairwise(found))


def test_the_weighted_objective_weighs() -> None:
    mine = estimator(demand("a", weight=3.0, rate=0.5), demand("b"), objective="weighted")
    unit = mine.unit(A100, 1, offers(mine))
    assert unit is not None
    assert unit.value == pytest.approx(0.5 * 3 + 1.0)


def test_a_refusal_has_its_reason() -> None:
    big = estimator(demand("big", "llama-2-70b"))
    assert big.unit(A100, 1, [(0, 1.0)]) is None
    refusal = big.refusal(A100, 1, [(0, 1.0)])
    assert refusal is not None
    assert refusal.model == "big"
    assert refusal.missing_bytes > 0
    assert big.refusal(A100, 2, [(0, 1.0)]) is None


def test_the_order_of_offers_does_not_matter() -> None:
    mine = estimator(demand("a"), replace(demand("b"), rate=2.0))
    assert mine.unit(A100, 1, [(0, 1.0), (1, 2.0)]) is mine.unit(A100, 1, [(1, 2.0), (0, 1.0)])
