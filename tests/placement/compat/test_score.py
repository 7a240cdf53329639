"""The compat planner's curves, candidates and score F against the recorded and a plain rewrite."""

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from muxcluster.placement.compat import CompatError, cluster_score, read_curves
from muxcluster.placement.compat.curves import Curves
from muxcluster.placement.compat.facts import FACTS
from muxcluster.placement.compat.mesh import estimate, fits, value
from muxcluster.placement.compat.solo import Model, Tenant, candidates, fill_share
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES

POINTS = range(17)
LAYOUTS = ("reference_as_is", "reference_index_bug_fixed", "best_found_hill_climb")


@pytest.fixture(scope="module")
def folder(data_dir: Path) -> Path:
    path = data_dir / "muxserve"
    if not (path / "planner_points.json").is_file():
        pytest.skip(f"no planner points in {path}")
    return path


@pytest.fixture(scope="module")
def curves(folder: Path) -> Curves:
    return read_curves(folder / "llama_a100_profile.json")


@pytest.fixture(scope="module")
def points(folder: Path) -> list[Any]:
    return list(json.loads((folder / "planner_points.json").read_bytes()))


def problem_of(point: Mapping[str, Any]) -> Problem:
    demands = tuple(
        Demand(each["name"], SHAPES[each["model"]], each["rate"], 161, 338, 2048, 256)
        for each in point["models"]
    )
    cluster = point["cluster"]
    nodes = tuple(
        Node(f"node-{index}", cluster["ngpus_per_node"], GPUS["A100-80GB"])
        for index in range(cluster["nnodes"])
    )
    return Problem(demands, nodes)


def layout_of(recorded: Mapping[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The three layouts are written in three ways."""
    for mesh in recorded["layout"]:
        num_gpus, models = mesh if isinstance(mesh, list) else (mesh["ngpus"], mesh["llms"])
        yield num_gpus, [each if isinstance(each, str) else each["name"] for each in models]


def tenants_of(point: Mapping[str, Any], curves: Curves) -> dict[str, dict[int, Tenant]]:
    models = [Model(each["name"], each["model"], each["rate"]) for each in point["models"]]
    fill = fill_share(models, point["cluster"]["nnodes"] * point["cluster"]["ngpus_per_node"])
    return {
        model.name: {each.tenant.tp: each.tenant for each in candidates(model, curves, fill)}
        for model in models
    }


def one_by_one(tenants: list[Tenant]) -> float:
    """The mesh estimate as it is described, one sequence at a time."""
    cache = max(0, 0.98 * 80 * tenants[0].tp - sum(each.weights_gb + 6 for each in tenants))
    scale = sum(each.rate * each.seq_gb for each in tenants)
    caps = [each.cap(cache * each.rate * each.seq_gb / scale) for each in tenants]
    batches = [int(each.probe(cap)) for each, cap in zip(tenants, caps, strict=True)]
    best = 0.0
    while any(batch < cap for batch, cap in zip(batches, caps, strict=True)):
        steps = [each.step(batch) for each, batch in zip(tenants, batches, strict=True)]
        prefill = sum(each.prefill_s[step] for each, step in zip(tenants, steps, strict=True))
        rates = [
            batch / (each.fixed_s[step] + each.per_seq_s * batch + prefill)
            for each, step, batch in zip(tenants, steps, batches, strict=True)
        ]
        total = sum(each.rate * rate for each, rate in zip(tenants, rates, strict=True))
        best = max(best, total / sum(each.rate for each in tenants))
        hungry = [
            index
            for index, (each, rate) in enumerate(zip(tenants, rates, strict=True))
            if rate + min(0.5, 0.1 * rate) < each.rate and batches[index] < caps[index]
        ]
        if not hungry:
            break
        batches[min(hungry, key=lambda index: rates[index] / tenants[index].rate)] += 1
    return best


@pytest.mark.parametrize("index", POINTS)
def test_recorded_scores(index: int, points: list[Any], curves: Curves) -> None:
    point = points[index]
    problem = problem_of(point)
    recorded = [name for name in LAYOUTS if name in point]
    assert recorded[:2] == list(LAYOUTS[:2])
    for name in recorded:
        score = cluster_score(problem, curves, layout_of(point[name]))
        assert score == pytest.approx(point[name]["F"], rel=1e-9)


@pytest.mark.parametrize("index", POINTS)
def test_recorded_shares_of_layouts(index: int, points: list[Any], curves: Curves) -> None:
    point = points[index]
    tenants = tenants_of(point, curves)
    for mesh in point["reference_as_is"]["layout"]:
        for model in mesh["llms"]:
            assert tenants[model["name"]][mesh["ngpus"]].decode_sm == model["decode_sm"]
        together = [tenants[model["name"]][mesh["ngpus"]] for model in mesh["llms"]]
        assert not together or fits(together)


@pytest.mark.parametrize("index", POINTS)
def test_recorded_candidates(index: int, points: list[Any], curves: Curves) -> None:
    point = points[index]
    models = [Model(each["name"], each["model"], each["rate"]) for each in point["models"]]
    fill = fill_share(models, point["cluster"]["nnodes"] * point["cluster"]["ngpus_per_node"])
    for model in models:
        found = [
            {
                "ngpus": each.tenant.tp,
                "decode_sm": each.tenant.decode_sm,
                "bs": each.batch,
                "tpt": pytest.approx(each.throughput, rel=1e-12),
                "can_satisfy": each.satisfied,
            }
            for each in candidates(model, curves, fill)
        ]
        assert point["parallel_candidates"][model.name] == found


@pytest.mark.parametrize("index", [0, 1, 3, 5, 8, 13, 16])
def test_growing_in_runs_is_growing_one_by_one(
    index: int, points: list[Any], curves: Curves
) -> None:
    tenants = tenants_of(points[index], curves)
    sets = [
        [each[tp] for each in chosen]
        for tp in (1, 2, 4, 8)
        for size in (1, 2, 3, 4)
        for chosen in combinations([each for each in tenants.values() if tp in each], size)
        if fits([each[tp] for each in chosen])
    ]
    for chosen in sets[:: 1 + len(sets) // 150]:
        assert value(chosen) == pytest.approx(one_by_one(chosen), rel=1e-12)


def test_estimate_states_what_its_value_is_made_of(points: list[Any], curves: Curves) -> None:
    tenants = tenants_of(points[0], curves)
    mesh = [tenants[name][4] for name in ("llm-0", "llm-1")]
    found = estimate(mesh)
    total = sum(each.rate * rate for each, rate in zip(mesh, found.throughputs, strict=True))
    assert found.value == pytest.approx(total / sum(each.rate for each in mesh))
    assert found.value == value(mesh)


def test_a_mesh_that_starts_at_its_caps_is_worth_nothing(curves: Curves) -> None:
    curve = curves.by_model["llama-7b"][1][30]
    tenant = Tenant(Model("hot", "llama-7b", 1000.0), 1, 30, curve)
    assert value([tenant]) == pytest.approx(one_by_one([tenant]), rel=1e-12)
    assert value([tenant]) > 0
    tenant.seq_gb = 80.0
    found = estimate([tenant])
    assert found.value == value([tenant]) == one_by_one([tenant]) == 0
    assert found.batches == (1,)
    assert found.throughputs == (tenant.alone(1),)


def test_facts_are_those_of_the_shapes() -> None:
    for name, facts in FACTS.items():
        shape = SHAPES[name]
        assert (facts.num_layers, facts.hidden_size) == (shape.num_layers, shape.hidden_size)
        assert facts.kv_gb_per_token * 2**30 == shape.kv_bytes_per_token(2)
        assert facts.weights_gb == pytest.approx(2 * shape.num_params / 1e9, rel=0.09)


def _profile(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {"llama-7b": {"1": {"100": cells, "30": cells}}}


def test_curve_of_a_small_profile(tmp_path: Path) -> None:
    """Running means in the file's order up to the first length above the limit; holes left out."""
    row = {
        "32": {"prefill": 1.0, "decoding": 10.0},
        "128": {"prefill": -1, "decoding": 20.0},
        "64": {"prefill": -1, "decoding": -1},
        "256": {"prefill": 4.0, "decoding": -1.0},
        "512": {"prefill": 9.0, "decoding": 30.0},
        "1024": {"prefill": 99.0, "decoding": 99.0},
    }
    empty = {"32": {"prefill": 5.0, "decoding": -1}}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(_profile({"1": row, "2": row, "4": empty})))
    curve = read_curves(path).by_model["llama-7b"][1][30]
    assert curve.batches == (1, 2)
    assert curve.prefill_s == pytest.approx((0.004, 0.004))
    assert curve.decode_s == pytest.approx(((10 + 15 + 20) / 3e3,) * 2)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"llama-7b": {"1": {"30": {}}}}',
        '{"llama-7b": {"1": {"100": {"1": {"32": {"prefill": 1}}}}}}',
        json.dumps({"llama-7b": {"1": {"100": {"1": {"32": {"prefill": 1, "decoding": 1}}}}}}),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(CompatError, match="wrong.json"):
        read_curves(path)


def test_a_missing_profile_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        read_curves(tmp_path / "absent.json")
