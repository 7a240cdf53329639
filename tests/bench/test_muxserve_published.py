"""The published runs: every model placed once, pools as recorded, quotas, replays end to end."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from bench.muxserve.artifact.published import SYSTEMS, Mesh, Run, Served, kv_share, read_runs
from bench.muxserve.artifact.reference import GPU, ReferenceCost, units_of_run
from bench.muxserve.artifact.replay import lengths, replay
from muxcluster.core.job import Phase
from muxcluster.placement.cost import Roofline
from muxcluster.placement.shapes.known import SHAPES


@pytest.fixture(scope="module")
def runs(data_dir: Path) -> tuple[Run, ...]:
    return read_runs(data_dir)


def test_every_point_has_three_systems_with_the_same_models(runs: tuple[Run, ...]) -> None:
    assert len(runs) == 42
    for _, found in groupby(runs, key=lambda run: run.point):
        group = sorted(found, key=lambda run: run.system)
        assert tuple(run.system for run in group) == tuple(sorted(SYSTEMS))
        names = [sorted(model.name for model in run.models) for run in group]
        assert names[0] == names[1] == names[2]
        assert len(set(names[0])) == len(names[0]) in (16, 19)


def test_meshes_fit_the_cluster_and_have_a_pool(runs: tuple[Run, ...]) -> None:
    for run in runs:
        assert 16 <= sum(mesh.tp for mesh in run.meshes) <= 32
        for mesh in run.meshes:
            assert 0.0 < mesh.kv_share < 1.0
            held = sum(SHAPES[model.shape].num_params for model in mesh.models) * 2 / mesh.tp
            assert held + mesh.kv_share * 80e9 < 81e9


def test_a_sequence_quota_fills_the_recorded_pool(runs: tuple[Run, ...]) -> None:
    """LLaMA-13B alone on a GPU at 0.5: 39.55 GiB of 0.78125 MiB a token, 416 tokens a sequence."""
    run = next(r for r in runs if (r.point, r.system) == ("chatlmsys_c500", "spatial"))
    specs = {unit.spec.models[0].name: unit.spec for unit in units_of_run(run, Roofline(GPU))}
    assert specs["llm-1"].models[0].max_seqs == int(39.55 * 1024 / 0.78125 / 416)


def test_lengths_of_the_trace_are_near_those_it_says(runs: tuple[Run, ...]) -> None:
    """The release gives 100.2 prompt and 261.3 output tokens, of twice as many requests."""
    run = next(r for r in runs if (r.point, r.system) == ("chatlmsys_c500", "spatial"))
    count = sum(model.count for model in run.models)
    prompt = sum(model.count * model.prompt for model in run.models) / count
    output = sum(model.count * model.output for model in run.models) / count
    assert prompt + output == pytest.approx(100.2 + 261.3, rel=0.1)


def test_pool_of_an_unrecorded_mesh() -> None:
    model = Served("m", "llama-7b", 1.0, 1, 10, 10, 1.0, 0.9, 1.0)
    assert kv_share(1, [model]) == pytest.approx((80 - 14 - 7.6) / 80)
    both = [model, replace(model, shape="llama-13b")]
    assert kv_share(2, both) == pytest.approx((80 - 20 - 15.2) / 80)


def test_only_muxserve_runs_jobs_side_by_side() -> None:
    model = Served("m", "llama-7b", 1.0, 4, 10, 10, 0.9, 0.3, 1.0)
    for system in SYSTEMS:
        (unit,) = units_of_run(Run("p", system, (Mesh(1, 0.5, (model,)),)), Roofline(GPU))
        phases = {worker.phases for worker in unit.spec.workers}
        assert (phases == {frozenset(Phase)}) == (system != "muxserve")


def test_upload_is_added_to_decode_alone() -> None:
    plain, shape = Roofline(GPU), SHAPES["llama-13b"]
    cost = ReferenceCost(plain, "llama-13b")
    assert cost.decode_s(shape, 1, 1.0, 100, 300) == pytest.approx(
        plain.decode_s(shape, 1, 1.0, 100, 300) + 8e-3
    )
    assert cost.prefill_s(shape, 1, 1.0, 4, 300) == plain.prefill_s(shape, 1, 1.0, 4, 300)
    drawn = cost.decode_draw(shape, 1, 1.0, 100, 300) * cost.decode_s(shape, 1, 1.0, 100, 300)
    moved = plain.decode_draw(shape, 1, 1.0, 100, 300) * plain.decode_s(shape, 1, 1.0, 100, 300)
    assert drawn == pytest.approx(moved)


@pytest.mark.parametrize("mean", [3.0, 100.0, 400.0])
def test_lengths_have_the_mean_and_the_limits(mean: float) -> None:
    drawn = lengths(np.random.default_rng(0), mean, 5000)
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.min() >= 1
    assert drawn.max() <= 1024


def test_an_idle_model_serves_at_its_arrival_rate(data_dir: Path) -> None:
    """40 requests in 400 s, a second each: the window ends soon after the last arrival."""
    model = Served("m", "llama-7b", 0.1, 40, 100, 50, 1.0, 0.9, 1.0, span_s=400.0)
    run = Run("p", "spatial", (Mesh(1, 0.5, (model,)),))
    found = replay(run, data_dir, seed=1)
    assert 40 / 410 < found.per_s["m"] < 40 / 350
    assert 0.3 < found.latency_s["m"] < 1.5
    assert 0.01 < found.ttft_s["m"] < 0.1
    assert found == replay(run, data_dir, seed=1)


def test_an_overloaded_model_serves_what_the_profile_allows(data_dir: Path) -> None:
    """Throughput times output tokens is less than a full batch a decode step, and near it."""
    model = Served("m", "llama-7b", 100.0, 1500, 161, 255, 1.0, 0.9, 1.0)
    per_s = replay(Run("p", "spatial", (Mesh(1, 0.5, (model,)),)), data_dir, seed=0).per_s["m"]
    assert 0.5 * 194 / 0.05 < per_s * 255 < 194 / 0.045
