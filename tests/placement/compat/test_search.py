"""The compat planner's plans: the best there are and feasible; a clear refusal where none is."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planning.verify import violations
from muxcluster.placement.compat import CompatError, cluster_score, place_compat, read_curves
from muxcluster.placement.compat.checks import case_of
from muxcluster.placement.compat.curves import Curves
from muxcluster.placement.compat.mesh import fits
from muxcluster.placement.compat.search import divide
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.shapes.known import SHAPES

A100 = GPUS["A100-80GB"]
Layout = list[tuple[int, list[str]]]


@pytest.fixture(scope="module")
def curves(data_dir: Path) -> Curves:
    path = data_dir / "muxserve" / "llama_a100_profile.json"
    if not path.is_file():
        pytest.skip(f"no profile at {path}")
    return read_curves(path)


@pytest.fixture(scope="module")
def points(data_dir: Path) -> list[Any]:
    return list(json.loads((data_dir / "muxserve" / "planner_points.json").read_bytes()))


def problem_of(kinds: Sequence[str], rates: Sequence[float], nodes: Sequence[int]) -> Problem:
    demands = [
        Demand(f"m{index}", SHAPES[kind], rate, 161, 338, 2048, 256)
        for index, (kind, rate) in enumerate(zip(kinds, rates, strict=True))
    ]
    return Problem(
        tuple(demands), tuple(Node(f"n{index}", size, A100) for index, size in enumerate(nodes))
    )


def splits(num_gpus: int, largest: int = 64) -> Iterator[tuple[int, ...]]:
    """Every way to write a node's GPUs as powers of two."""
    if num_gpus == 0:
        yield ()
    for size in (1, 2, 4, 8, 16):
        if size <= min(num_gpus, largest):
            for rest in splits(num_gpus - size, size):
                yield (size, *rest)


def groups(nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every mesh group of the cluster, as the reference enumerates them."""
    for chosen in product(*(list(splits(size)) for size in nodes)):
        yield tuple(size for split in chosen for size in split)


def test_mesh_groups_of_the_oracle_are_the_reference_s(points: list[Any]) -> None:
    """The rules that the brute force goes by: `mesh_group_candidates` was recorded."""
    for point in points:
        cluster = point["cluster"]
        least = {"llama-7b": 1, "llama-13b": 1, "llama-30b": 2, "llama-65b": 4}
        largest = max(least[each["model"]] for each in point["models"])
        each_node = list(splits(cluster["ngpus_per_node"]))
        chosen = combinations_with_replacement(each_node, cluster["nnodes"])
        meshes = [tuple(size for split in each for size in split) for each in chosen]
        allowed = [each for each in meshes if len(each) <= len(point["models"])]
        count = sum(max(each) >= largest for each in allowed)
        assert count == point["reference_as_is"]["mesh_group_candidates"]


def brute_force(problem: Problem, curves: Curves) -> float | None:
    """The greatest F over all layouts, None where no layout is allowed."""
    case = case_of(problem, curves)
    found = set(groups([node.num_gpus for node in problem.nodes]))
    few = [each for each in found if len(each) <= len(problem.demands)]
    by_rule = _best(problem, curves, case.tenants, few)
    return _best(problem, curves, case.tenants, found) if by_rule is None else by_rule


def _best(problem: Problem, curves: Curves, tenants: Any, found: Any) -> float | None:
    best = None
    names = [demand.name for demand in problem.demands]
    for meshes in found:
        for seats in product(range(len(meshes)), repeat=len(names)):
            if any(meshes[seat] not in tenants[model] for model, seat in enumerate(seats)):
                continue
            inside = [
                [model for model, seat in enumerate(seats) if seat == mesh]
                for mesh in range(len(meshes))
            ]
            sets = list(zip(meshes, inside, strict=True))
            if all(fits([tenants[model][size] for model in who]) for size, who in sets if who):
                layout = [(size, [names[model] for model in who]) for size, who in sets]
                score = cluster_score(problem, curves, layout)
                best = score if best is None else max(best, score)
    return best


def layout_of(plan: Plan) -> Layout:
    return [(unit.tp, [model.name for model in unit.models]) for unit in plan.units]


def check(plan: Plan, problem: Problem, curves: Curves) -> None:
    """Every rule, from the plan alone."""
    assert violations(plan, problem) == []
    assert plan.score == pytest.approx(cluster_score(problem, curves, layout_of(plan)), rel=1e-12)
    assert plan.bound is None or plan.bound >= plan.score
    kinds = {demand.name: demand for demand in problem.demands}
    for unit in plan.units:
        assert len(unit.gpus) in (1, 2, 4, 8)
        assert unit.gpus[0] % unit.tp == 0
        assert unit.gpus == tuple(range(unit.gpus[0], unit.gpus[0] + unit.tp))
        assert sum(model.decode_sm for model in unit.models) <= 1.2 + 1e-9
        billions = {32: 7, 40: 13, 60: 30, 80: 65}
        weights = [2 * billions[kinds[each.name].shape.num_layers] for each in unit.models]
        assert sum(weights) + 7.6 * (len(weights) - 1) <= 43.2 * unit.tp
        assert all(model.prefill_sm == 1 for model in unit.models)


def fewest_meshes(plan: Plan, problem: Problem) -> int:
    """Of the plan's units and the idle meshes that the rest of each node can be split into."""
    total = 0
    for node in problem.nodes:
        used = sorted(unit.tp for unit in plan.units if unit.node == node.name)
        total += min(
            len(split)
            for split in splits(node.num_gpus)
            if all(split.count(size) >= used.count(size) for size in used)
        )
    return total


@pytest.mark.parametrize("index", range(17))
def test_at_least_the_best_known_on_every_point(
    index: int, points: list[Any], curves: Curves
) -> None:
    point, cluster = points[index], points[index]["cluster"]
    models = point["models"]
    problem = problem_of(
        [each["model"] for each in models],
        [each["rate"] for each in models],
        [cluster["ngpus_per_node"]] * cluster["nnodes"],
    )
    plan = place_compat(problem, curves)
    known = ("reference_as_is", "reference_index_bug_fixed", "best_found_hill_climb")
    best = max(point[name]["F"] for name in known if name in point)
    assert plan.score >= best * (1 - 1e-12)
    assert plan.bound is not None
    assert plan.bound <= plan.score * (1 + 1e-4)
    check(plan, problem, curves)
    assert fewest_meshes(plan, problem) <= len(models)


def test_all_layouts_of_three_models_on_four_gpus(points: list[Any], curves: Curves) -> None:
    point = next(each for each in points if each["name"] == "basic3_4gpu")
    models = point["models"]
    problem = problem_of([each["model"] for each in models], [each["rate"] for each in models], [4])
    plan = place_compat(problem, curves)
    assert plan.score == pytest.approx(brute_force(problem, curves), rel=1e-12)
    assert plan.bound == pytest.approx(plan.score, rel=1e-12)


KINDS = st.sampled_from(["llama-7b", "llama-13b", "llama-30b", "llama-65b"])
MODELS = st.lists(st.tuples(KINDS, st.sampled_from([0.05, 0.4, 2.0, 7.5, 30.0])), min_size=1)
NODES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2)


@settings(max_examples=60)
@given(models=MODELS.filter(lambda models: len(models) <= 4), nodes=NODES)
def test_small_clusters_equal_brute_force(
    models: list[tuple[str, float]], nodes: list[int], curves: Curves
) -> None:
    problem = problem_of([kind for kind, _ in models], [rate for _, rate in models], nodes)
    try:
        plan = place_compat(problem, curves)
    except DoesNotFit as refusal:
        assert refusal.model in {demand.name for demand in problem.demands}
        assert "fit" in str(refusal)
        with pytest.raises(DoesNotFit):
            _refused(problem, curves)
        return
    assert plan.score == pytest.approx(brute_force(problem, curves), rel=1e-9)
    check(plan, problem, curves)


def _refused(problem: Problem, curves: Curves) -> None:
    """Raises DoesNotFit where brute force finds no layout either."""
    if brute_force(problem, curves) is None:
        raise DoesNotFit("all", "no layout")


@settings(max_examples=25)
@given(
    models=st.lists(st.tuples(KINDS, st.floats(0.01, 60)), min_size=1, max_size=9),
    nodes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_a_plan_is_always_feasible(
    models: list[tuple[str, float]], nodes: list[int], curves: Curves
) -> None:
    problem = problem_of([kind for kind, _ in models], [rate for _, rate in models], nodes)
    try:
        plan = place_compat(problem, curves)
    except DoesNotFit as refusal:
        assert refusal.missing_bytes is None or refusal.missing_bytes > 0
        return
    check(plan, problem, curves)


def test_order_of_models_and_nodes_changes_nothing(curves: Curves) -> None:
    kinds = ["llama-7b", "llama-13b", "llama-30b", "llama-65b"] * 2
    problem = problem_of(kinds, [9.0, 4.0, 1.5, 0.5, 3.0, 8.0, 2.0, 0.9], [8, 4, 8])
    plan = place_compat(problem, curves)
    draw = random.Random(7)
    for _ in range(3):
        demands = draw.sample(problem.demands, len(problem.demands))
        nodes = draw.sample(problem.nodes, len(problem.nodes))
        again = place_compat(replace(problem, demands=tuple(demands), nodes=tuple(nodes)), curves)
        assert again.score == plan.score
        assert again.units == plan.units


def test_a_plan_says_what_it_is(curves: Curves) -> None:
    problem = problem_of(["llama-7b", "llama-13b"], [5.0, 0.01], [2])
    plan = place_compat(problem, curves)
    assert (plan.method, plan.objective) == ("compat", "muxserve-F")
    served = {model.name: model.throughput for unit in plan.units for model in unit.models}
    assert 0 < served["m0"] <= 5.0
    assert served["m1"] == 0.01
    assert plan.throughput == pytest.approx(sum(served.values()))
    assert all(model.quota_blocks > 0 for unit in plan.units for model in unit.models)


def test_blocks_are_the_reference_s_cache_where_ours_do_not_fit(curves: Curves) -> None:
    """A context longer than our pool; theirs is 98 % of 80 GB less weights and activations."""
    problem = problem_of(["llama-7b"], [1.0], [1])
    ours = place_compat(problem, curves).units[0].kv_blocks
    long = replace(problem.demands[0], max_model_len=10**6)
    theirs = place_compat(replace(problem, demands=(long,)), curves).units[0].kv_blocks
    assert theirs == int((0.98 * 80 - 14 - 6) * 2**30) // (2 * 128 * 2 * 16)
    assert 0 < ours < theirs


def test_fewer_models_than_nodes_get_a_plan(curves: Curves) -> None:
    """The reference drops every mesh group here. 30B has no curve for 8 GPUs."""
    for kind in ("llama-7b", "llama-30b"):
        problem = problem_of([kind, kind], [2.0, 1.0], [8, 8, 8])
        plan = place_compat(problem, curves)
        check(plan, problem, curves)
        assert fewest_meshes(plan, problem) > len(problem.demands)
    full = problem_of(["llama-30b"] * 2, [2.0, 1.0], [8, 8])
    check(place_compat(full, curves), full, curves)


def test_many_models_are_placed_without_looking_at_every_column(
    curves: Curves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for a tenth of the columns: near the best, and no bound claimed."""
    kinds = ["llama-7b"] * 7 + ["llama-13b"] * 3 + ["llama-30b"]
    rates = [12 / (rank + 1) for rank in range(11)]
    problem = problem_of(kinds, rates, [8, 4])
    best = place_compat(problem, curves)
    case = case_of(problem, curves)
    monkeypatch.setattr("muxcluster.placement.compat.search._MOST_COLUMNS", 60)
    monkeypatch.setattr("muxcluster.placement.compat.search._PER_ROUND", 20)
    found = divide(case.tenants, case.meshes)
    assert found.bound is None
    assert found.unplaced == ()
    assert 0.97 * best.score <= found.score <= best.score * (1 + 1e-12)
    assert divide(case.tenants, case.meshes) == found


def test_an_over_full_cluster_is_refused_with_the_missing_gigabytes(curves: Curves) -> None:
    with pytest.raises(DoesNotFit, match=r"m\d does not fit: no room found for 1 of 3.*14.00 GiB"):
        place_compat(problem_of(["llama-7b"] * 3, [1.0, 2.0, 3.0], [1]), curves)
    with pytest.raises(DoesNotFit, match="llama-65b needs a mesh of 4 GPUs.*43.60 GiB missing"):
        place_compat(problem_of(["llama-7b", "llama-65b"], [1.0, 1.0], [2, 2]), curves)


GOOD = problem_of(["llama-7b"], [1.0], [1])
DEMAND, NODE = GOOD.demands[0], GOOD.nodes[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(GOOD, demands=(replace(DEMAND, shape=SHAPES["llama-2-7b"]),)), "model m0.*shape"),
        (replace(GOOD, demands=(replace(DEMAND, itemsize=4),)), "model m0.*16-bit"),
        (replace(GOOD, demands=(replace(DEMAND, rate=0.0),)), "model m0.*rate.*above 0"),
        (replace(GOOD, nodes=(replace(NODE, gpu=GPUS["H100"]),)), "node n0.*A100-80GB, not H100"),
        (replace(GOOD, nodes=()), "no GPU"),
        (replace(GOOD, demands=()), "no model"),
    ],
)
def test_what_the_reference_does_not_know_is_refused(
    wrong: Problem, said: str, curves: Curves
) -> None:
    with pytest.raises(CompatError, match=said):
        place_compat(wrong, curves)


def test_a_profile_without_the_model_is_refused(curves: Curves) -> None:
    short = Curves({"llama-13b": curves.by_model["llama-13b"]})
    with pytest.raises(CompatError, match="model m0: the profile has no llama-7b"):
        place_compat(GOOD, short)


def test_limits_bound_the_pool(curves: Curves) -> None:
    limits = Limits(kv_bytes=2**33)
    plan = place_compat(replace(GOOD, limits=limits), curves)
    assert plan.units[0].kv_blocks == 2**33 // (2 * 128 * 2 * 16)
