"""What holds of every plan: order does not matter, GPUs never hurt, moves must pay (issue 4)."""

import random
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.placement.hardware import GIB, GPUS, cpu
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.review.assess import assess
from muxcluster.placement.review.headroom import headroom
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples

FAST = settings(
    deadline=None,
    max_examples=examples(3, 20),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
"""A plan takes up to a second, so failures are shown as found, not shrunk for minutes."""
KINDS = ("A100-80GB", "H100", "L40S")
MODELS = ("llama-2-7b", "llama-2-13b", "qwen2.5-32b", "mistral-7b", "llama-3.2-3b")


def demand(name: str, shape: str = "llama-2-7b", rate: float = 1.0, **changes) -> Demand:
    fields = {"prompt_tokens": 161, "output_tokens": 338, "max_model_len": 2048, "max_seqs": 256}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


WANTED = st.lists(
    st.tuples(st.sampled_from(MODELS), st.floats(0.1, 60)), min_size=1, max_size=5
).map(lambda wanted: tuple(demand(f"m{i}", shape, rate) for i, (shape, rate) in enumerate(wanted)))
HARDWARE = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(KINDS)), min_size=1, max_size=2)


def nodes(hardware) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", count, GPUS[gpu]) for i, (count, gpu) in enumerate(hardware))


def planned(problem: Problem) -> float | None:
    try:
        plan = place(problem)
    except DoesNotFit:
        return None
    assert violations(plan, problem) == []
    return plan.throughput


@pytest.mark.slow
@FAST
@given(demands=WANTED, hardware=HARDWARE, seed=st.integers(0, 99))
def test_the_order_of_models_and_nodes_does_not_matter(demands, hardware, seed) -> None:
    draw = random.Random(seed)
    there = nodes(hardware)
    mixed = Problem(
        tuple(draw.sample(demands, len(demands))), tuple(draw.sample(there, len(there)))
    )
    assert planned(Problem(demands, there)) == planned(mixed)


@pytest.mark.slow
@FAST
@given(demands=WANTED, hardware=HARDWARE, which=st.integers(0, 1))
def test_one_gpu_more_never_lowers_the_throughput(demands, hardware, which) -> None:
    which %= len(hardware)
    grown = [(n + (i == which), gpu) for i, (n, gpu) in enumerate(hardware)]
    before = planned(Problem(demands, nodes(hardware)))
    after = planned(Problem(demands, nodes(grown)))
    if before is not None:
        assert after is not None
        # plans of equal throughput are ranked by headroom, worth a ten-thousandth
        assert after >= before * (1 - 1e-4) - 1e-9


@FAST
@given(demands=WANTED, hardware=HARDWARE)
def test_no_gpu_is_idle_while_a_rate_is_unmet(demands, hardware) -> None:
    problem = Problem(demands, nodes(hardware))
    try:
        plan = place(problem)
    except DoesNotFit:
        return
    unmet = sum(each.rate for each in demands) - plan.throughput > 1e-6
    used = {node.name: 0 for node in problem.nodes}
    for unit in plan.units:
        used[unit.node] += unit.tp
    for node in problem.nodes:
        alone = [planned_alone(each, node) for each in demands]
        # a GPU on which no model fits is no use
        if unmet and any(alone):
            assert used[node.name] == node.num_gpus


def planned_alone(each: Demand, node: Node) -> bool:
    return planned(Problem((each,), (replace(node, num_gpus=1),))) is not None


def test_fewest_gpus_meets_all_rates_with_fewer() -> None:
    demands = (demand("a", rate=2.0), demand("b", "llama-2-13b", rate=0.5), demand("c", rate=0.1))
    cluster = (Node("n", 8, GPUS["A100-80GB"]),)
    full = place(Problem(demands, cluster))
    few = place(Problem(demands, cluster, objective="fewest-gpus"))
    assert few.throughput == pytest.approx(2.6)
    assert few.score == sum(unit.tp for unit in few.units) < 8
    assert sum(unit.tp for unit in full.units) == 8
    # no smaller cluster serves as much
    smaller = (Node("n", int(few.score) - 1, GPUS["A100-80GB"]),) if few.score > 1 else None
    if smaller is not None:
        less = planned(Problem(demands, smaller))
        assert less is None or less < 2.6 - 1e-6


@pytest.mark.slow
def test_replanning_for_the_same_demand_keeps_every_unit() -> None:
    problem = Problem(
        tuple(demand(f"m{i}", MODELS[i], 3.0 / (i + 1)) for i in range(5)),
        (Node("a", 2, GPUS["A100-80GB"]), Node("b", 2, GPUS["A100-80GB"])),
    )
    first = place(problem)
    again = place(problem, current=first)
    assert where(again) == where(first)


def test_a_new_model_moves_nobody_who_need_not_move() -> None:
    problem = Problem(
        tuple(demand(f"m{i}", "llama-2-7b", 1.0) for i in range(4)),
        (Node("a", 8, GPUS["A100-80GB"]),),
    )
    first = place(problem)
    more = replace(problem, demands=(*problem.demands, demand("new", "llama-2-13b", 0.2)))
    second = place(more, current=first)
    assert violations(second, more) == []
    assert second.throughput == pytest.approx(4.2)
    before, after = where(first), where(second)
    assert all(before[f"m{i}"] <= after[f"m{i}"] for i in range(4))


def test_a_lost_node_is_left() -> None:
    models = tuple(demand(f"m{i}", "llama-2-7b", 1.0) for i in range(4))
    first = place(Problem(models, (Node("a", 2, GPUS["H100"]), Node("b", 2, GPUS["H100"]))))
    rest = Problem(models, (Node("b", 2, GPUS["H100"]),))
    second = place(rest, current=first)
    assert violations(second, rest) == []
    assert second.throughput == pytest.approx(4.0)


def where(plan) -> dict[str, set[tuple[str, tuple[int, ...]]]]:
    """Model -> the GPUs that hold it."""
    found: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for unit in plan.units:
        for model in unit.models:
            found.setdefault(model.name, set()).add((unit.node, unit.gpus))
    return found


@pytest.mark.slow
@FAST
@given(demands=WANTED, hardware=HARDWARE)
def test_the_assessment_agrees_with_the_plan(demands, hardware) -> None:
    problem = Problem(demands, nodes(hardware))
    try:
        plan = place(problem)
    except DoesNotFit:
        return
    reports = assess(problem, plan)
    served = sum(model.served for report in reports for model in report.models)
    # the file says what each replica serves, not what it was offered: an overloaded model's rate
    # is split a little differently here
    assert served == pytest.approx(plan.throughput, rel=0.15)
    for unit, report in zip(plan.units, reports, strict=True):
        assert report.id == unit.id
        assert report.free_bytes > 0
        assert max(report.prefill, report.sms, report.bandwidth) <= 1 + 1e-6
        assert (report.limit == "") == all(model.share > 1 - 1e-9 for model in report.models)


def test_too_little_memory_for_all_names_a_model_and_gigabytes() -> None:
    crowd = tuple(demand(f"m{i}", "llama-2-13b") for i in range(4))
    with pytest.raises(DoesNotFit, match="4 models do not fit together: .*GiB missing") as caught:
        place(Problem(crowd, (Node("a", 1, GPUS["A100-80GB"]),)))
    assert 0 < caught.value.missing_bytes < 80 * GIB


def test_machines_of_one_name_and_different_size_are_told_apart() -> None:
    """Every cpu node is called "cpu", whatever its cores and memory."""
    small, large = Node("a", 1, cpu(2, 24 * GIB)), Node("b", 1, cpu(16, 96 * GIB))
    demands = tuple(demand(f"m{i}", "opt-125m", 0.1, itemsize=4) for i in range(3))
    problem = Problem(demands, (small, large))
    for method in ("greedy", "exact", "memory-greedy"):
        plan = place(problem, method)
        assert violations(plan, problem) == []
    only_large = Problem((demand("m", "llama-2-7b", 0.01, itemsize=4),), (small, large))
    assert place(only_large).units[0].node == "b"


def test_a_plan_in_force_whose_units_overlap_is_not_carried_on() -> None:
    problem = Problem((demand("a"), demand("b")), (Node("n", 2, GPUS["A100-80GB"]),))
    plan = place(problem)
    twice = tuple(
        unit.model_copy(update={"gpus": (0,), "tp": 1, "id": f"u{i}"})
        for i, unit in enumerate((*plan.units, *plan.units)[:2])
    )
    second = place(problem, current=plan.model_copy(update={"units": twice}))
    assert violations(second, problem) == []


@pytest.mark.slow
def test_memory_for_all_is_found_though_only_the_densest_packing_has_it() -> None:
    """Thirteen models of 12.6 GiB and the KV of one sequence each: five on each of three GPUs."""
    crowd = tuple(demand(f"m{i:02}", rate=5.0, max_model_len=1024) for i in range(13))
    problem = Problem(crowd, (Node("n", 3, GPUS["A100-80GB"]),))
    assert violations(place(problem), problem) == []


def test_more_gpus_than_models_are_used_while_that_gains_headroom() -> None:
    node = Node("a", 8, GPUS["L40S"])
    busy = place(Problem((demand("a", rate=10.0),), (node,)))
    assert sum(unit.tp for unit in busy.units) == 8
    easy = Problem((demand("a", rate=1.0),), (node,))
    plan = place(easy)
    assert 1 < sum(unit.tp for unit in plan.units) < 8
    assert headroom(easy, plan).factor > 10
