"""Headroom is the factor at which a plan's rates are just served; idle GPUs have their reasons."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.placement.estimator import Estimator, strain
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.assess import assess, offers_of
from muxcluster.placement.review.headroom import headroom
from muxcluster.placement.review.idle import idle_gpus
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.layout import EASY, UnitBuilder
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples

FAST = settings(deadline=None, max_examples=examples(2, 15))
SLO = {"ttft_s": 1.0, "tpot_s": 0.06}


def demand(name: str, shape: str, rate: float, **changes: object) -> Demand:
    fields = {"prompt_tokens": 400, "output_tokens": 200, "max_model_len": 4096, "max_seqs": 64}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


MODELS = st.tuples(
    st.sampled_from(["llama-3.1-8b", "qwen3-1.7b", "qwen3-14b", "llama-2-13b", "llama-3.1-70b"]),
    st.floats(-1.5, 1.0).map(lambda exponent: 10**exponent),
    st.booleans(),
)
DEMANDS = st.lists(MODELS, min_size=1, max_size=5).map(
    lambda found: tuple(
        demand(f"m{number}", shape, rate, **(SLO if has_slo else {}))
        for number, (shape, rate, has_slo) in enumerate(found)
    )
)
HARDWARE = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["H100", "A100-80GB", "L4"])),
    min_size=1,
    max_size=2,
)


def nodes(hardware) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", count, GPUS[gpu]) for i, (count, gpu) in enumerate(hardware))


def grown(problem: Problem, factor: float) -> Problem:
    demands = tuple(replace(each, rate=each.rate * factor) for each in problem.demands)
    return replace(problem, demands=demands)


def is_held(problem: Problem, plan: Plan, factor: float) -> bool:
    """Whether the plan serves all within the targets that it meets when it is idle."""
    idle = {
        (report.id, model.name): _is_late(model)
        for report in assess(grown(problem, 1e-6), plan)
        for model in report.models
    }
    return all(
        model.share > 1 - 1e-9 and (idle[report.id, model.name] or not _is_late(model))
        for report in assess(grown(problem, factor), plan)
        for model in report.models
    )


def _is_late(model) -> bool:
    return any(
        margin is not None and margin < 0 for margin in (model.ttft_margin, model.tpot_margin)
    )


def strain_of(problem: Problem, plan: Plan) -> float:
    """The greatest strain of the plan's units."""
    estimator = Estimator(problem)
    gpus = {node.name: node.gpu for node in problem.nodes}
    found = [
        estimator.unit(gpus[unit.node], unit.tp, offers_of(problem, plan, unit))
        for unit in plan.units
    ]
    return max(strain(each) for each in found if each is not None)


@FAST
@given(demands=DEMANDS, hardware=HARDWARE)
def test_headroom_is_the_last_factor_that_is_served(demands, hardware) -> None:
    problem = Problem(demands, nodes(hardware))
    try:
        plan = place(problem)
    except DoesNotFit:
        return
    found = headroom(problem, plan)
    if found.factor >= 1024:
        assert is_held(problem, plan, 1000.0)
        return
    assert not is_held(problem, plan, found.factor * 1.02)
    if found.factor > 0:
        assert is_held(problem, plan, found.factor * 0.98)
    unit = next(unit for unit in plan.units if unit.id == found.unit)
    assert found.models == tuple(model.name for model in unit.models)


def test_without_targets_strain_is_load_and_targets_only_add() -> None:
    node = Node("n", 1, GPUS["H100"])
    for slo in ({}, SLO, {"ttft_s": 10.0}):
        problem = Problem((demand("m", "llama-3.1-8b", 8.0, **slo),), (node,))
        found = Estimator(problem).unit(node.gpu, 1, [(0, 8.0)])
        assert found is not None
        assert strain(found) == found.load if not slo else strain(found) > found.load


def test_a_target_that_no_rate_meets_is_a_greater_strain_on_a_slower_mesh() -> None:
    impossible = demand("m", "qwen3-14b", 0.1, tpot_s=1e-3)
    problem = Problem((impossible,), (Node("n", 2, GPUS["H100"]),))
    estimator = Estimator(problem)
    one, two = (estimator.unit(GPUS["H100"], tp, [(0, 0.1)]) for tp in (1, 2))
    assert one is not None and two is not None
    assert strain(one) > strain(two) > 10


@pytest.mark.slow
@FAST
@given(demands=DEMANDS, hardware=HARDWARE, which=st.integers(0, 1))
def test_a_gpu_more_never_lowers_headroom(demands, hardware, which) -> None:
    which %= len(hardware)
    larger = [(n + (i == which), gpu) for i, (n, gpu) in enumerate(hardware)]
    before, after = Problem(demands, nodes(hardware)), Problem(demands, nodes(larger))
    try:
        small = place(before)
    except DoesNotFit:
        return
    large = place(after)
    if large.throughput > small.throughput * (1 + 1e-6):
        return
    first, second = strain_of(before, small), strain_of(after, large)
    # strains within a hundredth (of a full unit) are one
    assert second <= max(first + 0.011, first * 1.011)


@FAST
@given(demands=DEMANDS, hardware=HARDWARE)
def test_no_gpu_is_idle_without_a_reason(demands, hardware) -> None:
    problem = Problem(demands, nodes(hardware))
    try:
        plan = place(problem)
    except DoesNotFit:
        return
    found = headroom(problem, plan)
    idle = idle_gpus(problem, plan, found)
    taken = [(unit.node, gpu) for unit in plan.units for gpu in unit.gpus]
    left = [(each.node, gpu) for each in idle for gpu in each.gpus]
    every = [(node.name, gpu) for node in problem.nodes for gpu in range(node.num_gpus)]
    assert sorted([*taken, *left]) == sorted(every)
    for each in idle:
        if "without them" in each.reason:
            assert found.factor * EASY >= 1
        if "is not worth" in each.reason:
            # more GPUs of another node make no step of a unit on this one shorter
            is_late = found.limit.startswith("latency target")
            assert is_late or strain_of(problem, plan) < 2 * EASY


@FAST
@given(demands=DEMANDS, hardware=HARDWARE)
def test_no_mesh_is_wider_than_gains_anything(demands, hardware) -> None:
    """A wide mesh is better than half of it, and than two halves with half of the rates each."""
    problem = Problem(demands, nodes(hardware)).in_order()
    try:
        plan = place(problem)
    except DoesNotFit:
        return
    builder = UnitBuilder(Estimator(problem), kinds_of(problem.nodes))
    gpus = {node.name: node.gpu for node in problem.nodes}
    units = [
        builder.unit(gpus[unit.node], unit.tp, offers_of(problem, plan, unit))
        for unit in plan.units
    ]
    placed = [unit for unit in units if unit is not None]
    best = builder.rank(placed)
    if best[0] < round(1e6):
        return  # not all is served: rates of replicas cannot be read from the plan
    for wide in (unit for unit in placed if unit.tp > 1):
        for part in (1.0, 0.5):
            offers = [(index, rate * part) for index, rate in wide.offers]
            half = builder.unit(wide.gpu, wide.tp // 2, offers)
            if half is not None:
                others = [unit for unit in placed if unit is not wide]
                narrow = builder.rank([*others, *[half] * round(1 / part)])
                assert narrow[:2] <= best[:2]


def test_models_that_need_little_are_on_narrow_meshes_of_all_gpus() -> None:
    """They were all on one mesh of four GPUs, most of which were idle."""
    shapes = ("llama-3.1-8b", "qwen3-14b", "qwen3-1.7b", "llama-2-7b")
    demands = tuple(demand(shape, shape, 1.0, **SLO) for shape in shapes)
    plan = place(Problem(demands, (Node("h", 4, GPUS["H100"]),)))
    assert sorted(unit.tp for unit in plan.units) == [1, 1, 1, 1]
    assert headroom(Problem(demands, (Node("h", 4, GPUS["H100"]),)), plan).factor > 4


def test_a_model_alone_runs_on_all_sms() -> None:
    (unit,) = place(Problem((demand("m", "qwen3-4b", 1.0),), (Node("h", 1, GPUS["H100"]),))).units
    assert (unit.models[0].prefill_sm, unit.models[0].decode_sm) == (1.0, 1.0)


def test_a_target_is_met_where_gpus_are_left() -> None:
    """One GPU serves the model's rate, but too slowly."""
    free = demand("m", "qwen3-14b", 0.5)
    node = Node("h", 2, GPUS["H100"])
    slow, fast = (
        estimate.latencies()[0].tpot_s.high
        for tp in (1, 2)
        if (estimate := Estimator(Problem((free,), (node,))).unit(node.gpu, tp, [(0, 0.5)]))
    )
    (unit,) = place(Problem((replace(free, tpot_s=(slow + fast) / 2),), (node,))).units
    assert unit.tp == 2
    assert all(unit.tp == 1 for unit in place(Problem((free,), (node,))).units)


def test_models_with_next_to_no_load_get_no_replicas() -> None:
    demands = tuple(demand(f"m{i}", "qwen3-1.7b", 0.05) for i in range(3))
    problem = Problem(demands, (Node("h", 8, GPUS["H100"]),))
    plan = place(problem)
    assert [len(unit.models) for unit in plan.units] == [1, 1, 1]
    (idle,) = idle_gpus(problem, plan, headroom(problem, plan))
    assert len(idle.gpus) == 5
    assert "without them" in idle.reason


def test_reasons_name_what_does_not_fit() -> None:
    big = demand("big", "llama-3.1-70b", 0.5)
    problem = Problem((big,), (Node("a", 3, GPUS["H100"]), Node("l", 1, GPUS["L4"])))
    plan = place(problem)
    first, second = idle_gpus(problem, plan, headroom(problem, plan))
    assert (first.node, len(first.gpus), second.node) == ("a", 1, "l")
    assert "no model fits there; nearest is big: 131.41 GiB" in first.reason
    few = replace(problem, objective="fewest-gpus")
    assert "fewest" in idle_gpus(few, place(few), None)[0].reason


def test_idle_gpus_of_a_baseline_are_not_explained_by_the_search() -> None:
    problem = Problem((demand("m", "qwen3-1.7b", 0.01),), (Node("a", 4, GPUS["H100"]),))
    plan = place(problem, "memory-greedy")
    (idle,) = idle_gpus(problem, plan, None)
    assert idle.reason == "method memory-greedy does not use them"


def test_replanning_moves_models_for_headroom_that_is_short() -> None:
    """Both models crowd one GPU of two; the objective is the same, and but a quarter more
    requests would be too many."""
    demands = (demand("a", "llama-3.1-8b", 6.0), demand("b", "llama-3.1-8b", 6.0))
    one, two = (Problem(demands, (Node("h", count, GPUS["A100-80GB"]),)) for count in (1, 2))
    crowded = place(one)
    assert crowded.throughput == pytest.approx(12.0)
    assert headroom(two, crowded).factor < 1.4
    after = place(two, current=crowded)
    assert headroom(two, after).factor > 1.25 * headroom(two, crowded).factor
    easy = tuple(replace(each, rate=0.5) for each in demands)
    stays = place(replace(two, demands=easy), current=place(replace(one, demands=easy)))
    assert len(stays.units) == 1, "headroom beyond twice the rates moves nothing"


def test_headroom_of_an_unknown_node_is_refused() -> None:
    problem = Problem((demand("m", "qwen3-1.7b", 1.0),), (Node("a", 1, GPUS["H100"]),))
    plan = place(problem)
    with pytest.raises(ValueError, match="which the cluster has not"):
        headroom(replace(problem, nodes=(Node("b", 1, GPUS["H100"]),)), plan)
