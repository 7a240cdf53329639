"""Every plan can be carried out, for random clusters and models; refusals are honest."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.placement.execution import executions, planned
from muxcluster.placement.hardware import GIB, GPUS, cpu
from muxcluster.placement.memory import DoesNotFit, block_bytes, table_bytes
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.quota import split_blocks
from muxcluster.placement.shapes.known import SHAPES
from tests.amounts import examples


def demand(name: str, shape: str = "llama-2-7b", rate: float = 1.0, **changes) -> Demand:
    fields = {"prompt_tokens": 161, "output_tokens": 338, "max_model_len": 2048, "max_seqs": 128}
    return Demand(name=name, shape=SHAPES[shape], rate=rate, **{**fields, **changes})


def a100s(count: int, name: str = "a") -> Node:
    return Node(name, count, GPUS["A100-80GB"])


DEMANDS = st.lists(
    st.tuples(st.sampled_from(sorted(SHAPES)), st.floats(0.01, 50), st.sampled_from([2, 4])),
    min_size=1,
    max_size=8,
)
NODES = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from(sorted(GPUS))), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=examples(2, 40))
@given(wanted=DEMANDS, hardware=NODES)
def test_random_problems(wanted, hardware) -> None:
    demands = tuple(
        demand(f"m{index}", shape, rate, itemsize=itemsize)
        for index, (shape, rate, itemsize) in enumerate(wanted)
    )
    nodes = tuple(
        Node(f"n{index}", count, GPUS[gpu]) for index, (count, gpu) in enumerate(hardware)
    )
    problem = Problem(demands, nodes)
    try:
        plan = place(problem)
    except DoesNotFit as refusal:
        assert refusal.model in {each.name for each in demands}
        return
    assert violations(plan, problem) == []
    assert plan.throughput <= sum(each.rate for each in demands) * (1 + 1e-9)
    assert plan.score == pytest.approx(plan.throughput)
    for unit in plan.units:
        assert unit.tp & (unit.tp - 1) == 0
        assert sum(model.quota_blocks for model in unit.models) == unit.kv_blocks
        for model in unit.models:
            in_turns = model.prefill_sm == model.decode_sm == 1
            assert in_turns or model.prefill_sm + model.decode_sm <= 1 + 1e-9
            assert model.batch >= 1


def test_all_gpus_are_used_and_the_popular_model_gets_most() -> None:
    demands = (demand("hot", rate=15), demand("cold", rate=0.1), demand("cool", rate=0.2))
    plan = place(Problem(demands, (a100s(4),)))
    assert sum(unit.tp for unit in plan.units) == 4
    gpus = dict.fromkeys(("hot", "cold", "cool"), 0)
    for unit in plan.units:
        for model in unit.models:
            gpus[model.name] += unit.tp
    assert max(gpus, key=gpus.__getitem__) == "hot"


@pytest.mark.slow
def test_a_model_past_what_one_mesh_serves_gets_replicas() -> None:
    plan = place(Problem((demand("hot", rate=300.0),), (a100s(4, "a"), a100s(4, "b"))))
    assert sum(unit.tp for unit in plan.units) == 8
    assert len(plan.units) > 1
    alone = place(Problem((demand("hot", rate=300.0),), (a100s(1),))).throughput
    assert plan.throughput > 5 * alone


def test_a_large_model_is_given_gpus_that_hold_it() -> None:
    demands = (demand("small", rate=40), demand("big", "llama-2-70b", rate=0.01))
    plan = place(Problem(demands, (a100s(4),)))
    assert all(unit.tp >= 2 for unit in plan.units for model in unit.models if model.name == "big")


def test_more_demand_than_the_cluster_can_serve_is_not_promised() -> None:
    plan = place(Problem((demand("a", rate=1000.0),), (a100s(1),)))
    assert 0 < plan.throughput < 200


def test_what_does_not_fit_names_model_and_gigabytes() -> None:
    with pytest.raises(DoesNotFit, match=r"big does not fit.*GiB missing") as caught:
        place(Problem((demand("big", "llama-2-70b"),), (a100s(1),)))
    weights = SHAPES["llama-2-70b"].num_params * 2
    assert caught.value.missing_bytes > weights - 72 * GIB
    with pytest.raises(DoesNotFit, match="max_model_len"):
        place(Problem((demand("long", max_model_len=500_000),), (a100s(1),)))


def test_the_tables_of_a_thousand_sequences_are_a_gigabyte() -> None:
    """design.md §3: 7B MHA, 1,000 sequences of 4k: 1 GB."""
    few = demand("a", max_model_len=4096, max_seqs=1)
    many = demand("a", max_model_len=4096, max_seqs=1001)
    size = block_bytes((few,), Limits())
    lost_bytes = table_bytes(many, size) - table_bytes(few, size)
    assert lost_bytes == pytest.approx(1.05e9, rel=0.05)


def test_a_pool_limit_is_kept() -> None:
    node = Node("local", 1, cpu(2, 64 * GIB))
    problem = Problem((demand("a", "opt-1.3b", itemsize=4),), (node,), Limits(kv_bytes=GIB))
    unit = place(problem).units[0]
    assert unit.kv_blocks * block_bytes(problem.demands, problem.limits) <= GIB


@given(
    weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=6),
    num_blocks=st.integers(0, 10**7),
    floor=st.integers(1, 10**6),
)
def test_quotas_are_the_whole_pool_and_starve_nobody(weights, num_blocks, floor) -> None:
    floors = [floor] * len(weights)
    quotas = split_blocks(num_blocks, floors, weights)
    assert sum(quotas) == num_blocks
    if floor * len(weights) <= num_blocks:
        assert min(quotas) >= floor
    for (weight, quota), (other_weight, other) in pairwise(zip(weights, quotas, strict=True)):
        assert (quota - other) * (weight - other_weight) >= -len(weights) * abs(
            weight - other_weight
        )


@given(
    models=st.lists(
        st.tuples(st.floats(0.001, 1000), st.integers(0, 1000), st.integers(0, 3000)),
        min_size=1,
        max_size=5,
    ),
    num_blocks=st.integers(0, 8000),
)
def test_quotas_keep_floors_and_waste_nothing(models, num_blocks) -> None:
    weights, floors, more = zip(*models, strict=True)
    most = [floor + extra for floor, extra in zip(floors, more, strict=True)]
    quotas = split_blocks(num_blocks, floors, weights, most)
    assert sum(quotas) == num_blocks
    if sum(floors) <= num_blocks:
        assert all(quota >= floor for quota, floor in zip(quotas, floors, strict=True))


def test_what_a_model_cannot_use_goes_to_the_others() -> None:
    assert split_blocks(100, [0, 0], [99.0, 1.0], [40, 500]) == (40, 60)
    assert sum(split_blocks(100, [0, 0], [99.0, 1.0], [40, 30])) == 100
    assert split_blocks(100, [10, 70], [99.0, 1.0], [40, 500]) == (30, 70)


def test_the_file_is_as_designed(tmp_path) -> None:
    plan = place(Problem((demand("a"),), (a100s(1),)))
    content = json.loads(plan.to_json())
    assert set(content) == {
        "method",
        "objective",
        "score",
        "throughput",
        "bound",
        "solve_seconds",
        "units",
    }
    assert set(content["units"][0]) == {
        "id",
        "node",
        "gpus",
        "tp",
        "kv_blocks",
        "models",
        "execution",
    }
    assert set(content["units"][0]["models"][0]) == {
        "name",
        "prefill_sm",
        "decode_sm",
        "batch",
        "quota_blocks",
        "throughput",
    }
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert Plan.read(tmp_path / "plan.json") == plan


def change_unit(plan: Plan, **changes: object) -> Plan:
    return plan.model_copy(update={"units": (plan.units[0].model_copy(update=changes),)})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"gpus": (3,)}, "uses GPU 3"),
        ({"gpus": (0, 0), "tp": 2}, "in two units"),
        ({"tp": 2}, "1 GPUs for tp 2"),
        ({"node": "b"}, "unknown node"),
        ({"kv_blocks": 10**9}, "room for"),
        ({"kv_blocks": 1}, "quotas"),
        ({"models": ()}, "in no unit"),
    ],
)
def test_the_check_sees_a_broken_plan(changes, fault) -> None:
    problem = Problem((demand("a"),), (a100s(1),))
    plan = place(problem)
    assert violations(plan, problem) == []
    assert any(fault in line for line in violations(change_unit(plan, **changes), problem))


def test_replanning_keeps_how_a_unit_runs_where_little_is_gained() -> None:
    """Another execution loads the weights of all its models again."""
    problem = Problem((demand("a"), demand("b")), (a100s(1),))
    best = place(problem)
    (unit,) = best.units
    ways = [planned(each) for each in executions(GPUS["A100-80GB"], 1, 2)]
    assert unit.execution in ways
    (other,) = (way for way in ways if way != unit.execution)
    running = best.model_copy(update={"units": (unit.model_copy(update={"execution": other}),)})
    (kept,) = place(problem, current=running).units
    assert kept.execution == other
    assert kept.models[0].throughput == pytest.approx(unit.models[0].throughput)
    gone = other.model_copy(update={"pipeline_depth": 7})  # of a policy that was changed since
    running = best.model_copy(update={"units": (unit.model_copy(update={"execution": gone}),)})
    assert place(problem, current=running).units[0].execution == unit.execution
