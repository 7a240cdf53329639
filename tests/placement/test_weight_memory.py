"""Models that share memory for weights: the closed formulas beside simulations, and what holds of
every plan with them."""

import math
import random
from collections import OrderedDict
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.core.residency import Residency
from muxcluster.core.unitspec import UnitSpec
from muxcluster.placement.estimator import Estimator
from muxcluster.placement.estimator.weight_memory import WeightMemory, late_s
from muxcluster.placement.execution import execution_of
from muxcluster.placement.hardware import GIB, GPUS, cpu
from muxcluster.placement.memory import (
    DoesNotFit,
    activation_bytes,
    block_bytes,
    recording_bytes,
    resident_bytes,
    usable_bytes,
    wake_s,
)
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.review.assess import assess
from muxcluster.placement.shapes.weight_format import QUANTIZE
from muxcluster.placement.specs import unit_specs
from tests.amounts import examples
from tests.placement.test_planner_properties import FAST as _FAST
from tests.placement.test_planner_properties import demand

FAST = settings(_FAST, max_examples=examples(5, 8))
ON_DEMAND, AUTO, ALWAYS = Residency.ON_DEMAND, Residency.AUTO, Residency.ALWAYS
SHAPES_7B_AND_13B = ("llama-2-7b", "llama-2-13b")


def lru_wakes(rates, sizes, room, seed, span_s) -> list[float]:
    """Wakes/s of each model where the one that was asked for longest ago is parked first."""
    draw, now, taken = random.Random(seed), 0.0, 0
    resident: OrderedDict[int, int] = OrderedDict()
    wakes = [0] * len(rates)
    while now < span_s:
        now += draw.expovariate(sum(rates))
        (model,) = draw.choices(range(len(rates)), rates)
        if model in resident:
            resident.move_to_end(model)
            continue
        wakes[model] += 1
        while taken + sizes[model] > room:
            taken -= resident.popitem(last=False)[1]
        resident[model] = sizes[model]
        taken += sizes[model]
    return [count / span_s for count in wakes]


@pytest.mark.parametrize(
    ("num_models", "num_at_once", "exponent"),
    [(6, 2, 1.0), (12, 4, 1.0), (30, 8, 0.5), (3, 1, 0.0)],
)
def test_wakes_are_those_of_a_simulated_lru(num_models, num_at_once, exponent) -> None:
    rates = [1.0 / (rank + 1) ** exponent for rank in range(num_models)]
    sizes = [GIB] * num_models
    weight_memory = WeightMemory(num_at_once, num_at_once * GIB, tuple(sizes), (1e-9,) * num_models)
    found = weight_memory.wakes_per_s(rates)
    seen = lru_wakes(rates, sizes, num_at_once * GIB, 1, 40_000 / sum(rates))
    assert sum(found) == pytest.approx(sum(seen), rel=0.12)
    for each, real in zip(found, seen, strict=True):
        assert each == pytest.approx(real, rel=0.35)


def test_wakes_of_models_of_different_sizes() -> None:
    draw = random.Random(3)
    sizes = [draw.choice((1, 2, 4)) * GIB for _ in range(20)]
    rates = [1.0 / (rank + 1) for rank in range(20)]
    weight_memory = WeightMemory(6, 24 * GIB, tuple(sizes), (1e-9,) * 20)
    room = weight_memory.turn_bytes
    seen = lru_wakes(rates, sizes, room, 2, 40_000 / sum(rates))
    assert sum(weight_memory.wakes_per_s(rates)) == pytest.approx(sum(seen), rel=0.15)


@given(
    rates=st.lists(st.floats(1e-4, 10), min_size=2, max_size=12),
    wake_s=st.floats(0.01, 30),
    data=st.data(),
)
def test_moves_take_at_most_all_of_the_time_and_waits_are_finite(rates, wake_s, data) -> None:
    count = data.draw(st.integers(1, len(rates) - 1))
    weight_memory = WeightMemory(count, count * GIB, (GIB,) * len(rates), (wake_s,) * len(rates))
    assert sum(weight_memory.wakes_per_s(rates)) * wake_s <= 1
    for wait in weight_memory.waits(rates, [5.0] * len(rates)):
        assert 0 <= wait.median <= wait.high < math.inf


@given(rates=st.lists(st.floats(1e-3, 3), min_size=3, max_size=8))
def test_one_model_more_at_once_means_fewer_wakes(rates) -> None:
    sizes, seconds = (GIB,) * len(rates), (0.01,) * len(rates)
    found = [
        sum(WeightMemory(count, count * GIB, sizes, seconds).wakes_per_s(rates))
        for count in range(1, len(rates) + 1)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0


def test_a_wait_is_as_long_as_a_simulated_one() -> None:
    """Requests that find their model absent, or on its way, wait for what is left of the wake."""
    rate, wake_s, stay_s = 0.2, 4.0, 3.0
    draw, now, last, ready, waits, wakes = random.Random(5), 0.0, -math.inf, 0.0, [], 0
    for _ in range(50_000):
        now += draw.expovariate(rate)
        if now >= ready and now - max(last, ready) > stay_s:
            ready, wakes = now + wake_s, wakes + 1
        waits.append(max(0.0, ready - now))
        last = now
    waits.sort()
    for tail in (0.5, 0.2, 0.05):
        real = waits[int(len(waits) * (1 - tail))]
        assert late_s(tail, wake_s, rate, wakes / now) == pytest.approx(real, abs=0.15)


def residing(count: int, kind: Residency, shape: str = "llama-2-13b", rate: float = 0.01):
    return tuple(
        replace(demand(f"m{index:02}", shape, rate, max_seqs=32), residency=kind)
        for index in range(count)
    )


ONE = (Node("a", 1, GPUS["A100-80GB"]),)


def test_models_that_do_not_fit_at_once_share_memory() -> None:
    with pytest.raises(DoesNotFit, match="do not fit together"):
        place(Problem(residing(8, ALWAYS), ONE), time_limit_s=1)
    problem = Problem(residing(8, ON_DEMAND), ONE)
    plan = place(problem, time_limit_s=1)
    assert violations(plan, problem) == []
    (unit,) = plan.units
    assert len(unit.models) == 8
    assert unit.resident_bytes > 0
    assert unit.unproven == "no GPU engine moves weights yet"
    assert all(model.wakes_per_h > 0 and model.wake_s > 0 for model in unit.models)
    assert plan.bound is not None
    assert plan.score <= plan.bound
    assert Plan.model_validate_json(plan.to_json()) == plan


@pytest.mark.parametrize("kind", [AUTO, ON_DEMAND])
def test_where_all_fit_the_plan_is_that_of_models_that_stay(kind) -> None:
    free = place(Problem(residing(2, kind), ONE), time_limit_s=0)
    bound = place(Problem(residing(2, ALWAYS), ONE), time_limit_s=0)
    assert free.units == bound.units
    text = bound.to_json()
    assert not any(key in text for key in ("residen", "wake", "waking", '"unproven": ""'))


def test_host_memory_limits_what_may_be_parked() -> None:
    problem = Problem(residing(8, ON_DEMAND), ONE, limits=Limits(parked_bytes=100 * GIB))
    with pytest.raises(DoesNotFit, match="host memory"):
        place(problem, time_limit_s=1)
    place(replace(problem, limits=Limits(parked_bytes=250 * GIB)), time_limit_s=1)


def test_host_memory_does_not_matter_to_models_that_all_fit() -> None:
    """Whatever the rates: an overloaded unit of models that fit needs no parking."""
    demands = tuple(replace(each, rate=1000.0) for each in residing(2, AUTO))
    plan = place(Problem(demands, ONE, limits=Limits(parked_bytes=GIB)), time_limit_s=1)
    (unit,) = plan.units
    assert not unit.resident_bytes


def test_a_cpu_node_can_run_what_is_planned() -> None:
    problem = Problem(residing(4, ON_DEMAND, "llama-3.2-3b"), (Node("c", 1, cpu(4, 40 * GIB)),))
    plan = place(problem, time_limit_s=1)
    (unit,) = plan.units
    assert (unit.unproven, unit.resident_bytes > 0) == ("", True)
    (spec,) = unit_specs(problem, plan)
    always, others = by_residency(spec)
    assert not always
    assert all(each.wake_s > 0 for each in others)
    assert max(each.resident_bytes for each in others) <= spec.resident_bytes
    assert spec.resident_bytes < sum(each.resident_bytes for each in others)


def by_residency(spec: UnitSpec):
    always = [each for each in spec.models if each.residency is ALWAYS]
    return always, [each for each in spec.models if each.residency is not ALWAYS]


KINDS = st.sampled_from([ALWAYS, AUTO, ON_DEMAND])
MIXED = st.lists(
    st.tuples(st.sampled_from(SHAPES_7B_AND_13B), st.floats(0.001, 2), KINDS),
    min_size=1,
    max_size=7,
).map(
    lambda wanted: tuple(
        replace(demand(f"m{i}", shape, rate, max_seqs=64), residency=kind)
        for i, (shape, rate, kind) in enumerate(wanted)
    )
)


@FAST
@given(
    demands=MIXED,
    num_gpus=st.integers(1, 2),
    gpu=st.sampled_from(["A100-40GB", "A100-80GB"]),
)
def test_memory_holds_every_set_of_residents(demands, num_gpus, gpu) -> None:
    problem = Problem(demands, (Node("n", num_gpus, GPUS[gpu]),))
    try:
        plan = place(problem, time_limit_s=1)
    except DoesNotFit:
        # then those that must stay do not fit, or not beside the largest that may be parked
        with pytest.raises(DoesNotFit):
            place(replace(problem, demands=as_always(demands)), time_limit_s=1)
        return
    assert violations(plan, problem) == []
    assert plan.bound is None or plan.score <= plan.bound * (1 + 1e-6)
    for unit in plan.units:
        if unit.resident_bytes:
            check_every_set(unit, plan, problem)
    for spec in unit_specs(problem, plan):
        always, others = by_residency(spec)
        if spec.resident_bytes:
            need = sum(each.resident_bytes for each in always)
            need += max(each.resident_bytes for each in others)
            assert need <= spec.resident_bytes
    assert all(report.memory_bytes >= report.weight_bytes for report in assess(problem, plan))


def as_always(demands: tuple[Demand, ...]) -> tuple[Demand, ...]:
    return tuple(replace(each, residency=ALWAYS) for each in demands)


def check_every_set(unit: PlannedUnit, plan: Plan, problem: Problem) -> None:
    asked = {each.name: each for each in problem.demands}
    mine = [asked[model.name] for model in unit.models]
    gpu = problem.nodes[0].gpu
    execution = execution_of(gpu, unit, problem.policy)
    size = block_bytes(mine, problem.limits)
    rest = unit.kv_blocks * size + recording_bytes(gpu, unit.tp, mine, execution)
    rest += max(activation_bytes(each, problem.limits, unit.tp) for each in mine)
    sizes = {each.name: resident_bytes(gpu, unit.tp, each, size, execution) for each in mine}
    always = sum(sizes[each.name] for each in mine if not each.may_park)
    movable = [sizes[each.name] for each in mine if each.may_park]
    (report,) = (each for each in assess(problem, plan) if each.id == unit.id)
    assert report.num_at_once is not None
    for some in combinations(movable, report.num_at_once):
        assert always + sum(some) <= unit.resident_bytes
        assert always + sum(some) + rest <= usable_bytes(gpu, unit.tp, execution)


def test_one_gpu_serves_more_the_more_may_be_parked() -> None:
    """A model that may be parked never makes a mesh too small that was large enough."""
    for count in range(1, 9):
        estimator = Estimator(Problem(residing(count, AUTO), ONE))
        offers = [(index, 0.01) for index in range(count)]
        assert estimator.unit(GPUS["A100-80GB"], 1, offers) is not None


def test_a_wake_on_a_cpu_reads_what_the_files_have() -> None:
    node = cpu(4, 40 * GIB)
    plain = replace(demand("m", "llama-3.2-3b", itemsize=4), residency=ON_DEMAND)
    int8 = replace(plain.shape, weights=QUANTIZE["int8"])
    stored, rounded = replace(plain, shape=int8), replace(plain, shape=int8, is_rounded=True)
    assert wake_s(node, stored, 1) < wake_s(node, plain, 1) / 2
    assert wake_s(node, rounded, 1) == wake_s(node, plain, 1)
    gpu = GPUS["H100"]  # whose host keeps them as the GPU has them
    assert wake_s(gpu, rounded, 1) == wake_s(gpu, stored, 1) < wake_s(gpu, plain, 1)
    assert wake_s(node, replace(plain, residency=ALWAYS), 1) == 0
