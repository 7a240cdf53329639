"""The ways in which a batch job's unit can run: their memory, and which of them is faster."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.offline.choice import Unplanned
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.planner import place
from muxcluster.placement.problem import Demand, Limits, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.batch.setting import Setting, settings_among
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.core.planned import units_of

A100 = Node("a", 1, GPUS["A100-80GB"])


def _setting(num_models: int, **limits: int) -> Setting:
    demands = tuple(
        Demand(f"m{number}", SHAPES["llama-3.1-8b"], 1.0, 200, 200, 4096, max_seqs=512)
        for number in range(num_models)
    )
    asked = Problem(demands, (A100,), limits=Limits(**limits))
    made = place(asked, "greedy")
    (found,) = settings_among(units_of(made, asked), made, asked, "m0")
    return found


def test_one_model_may_share_with_the_memory_that_its_contexts_leave() -> None:
    alone, shared = _setting(1).ways()
    assert (alone.unit.spec.scheduler.lane, shared.unit.spec.scheduler.lane) == ("mixed", "adbs")
    assert len(shared.unit.spec.workers) == 2
    assert 0.85 * alone.size_bytes < shared.size_bytes < alone.size_bytes
    assert shared.ways() == (shared,)


def test_several_models_are_run_as_planned() -> None:
    found = _setting(2)
    assert found.ways() == (found,)


@pytest.mark.parametrize("has_decodes", [True, False])
def test_side_by_side_pays_where_there_is_something_to_overlap(*, has_decodes: bool) -> None:
    """Long answers beside long prompts gain by SM partitions; prompts alone do not."""
    setting = _setting(1, token_budget=8192)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 30_000, 1500).astype(np.int32) for _ in range(600)]
    outputs = np.where(np.arange(600) % 3 == 0, 1500, 4) if has_decodes else np.full(600, 1)
    mixed_s, shared_s = (
        _makespan_s(way, prompts, outputs.astype(np.int64)) for way in _forced(setting)
    )
    assert (shared_s < 0.97 * mixed_s) is has_decodes


def _forced(setting: Setting) -> list[Setting]:
    """Both ways, the shared one without going back to mixed jobs."""
    alone, shared = setting.ways()
    spec = shared.unit.spec
    always = replace(spec, scheduler=replace(spec.scheduler, may_unshare=False))
    return [alone, replace(shared, unit=replace(shared.unit, spec=always))]


def _makespan_s(way: Setting, prompts: list[np.ndarray], outputs: np.ndarray) -> float:
    job = Unplanned(token_prompts(prompts), outputs, way.resources, way.size_bytes, 16)
    feeder = BatchFeeder(job.with_tree(), "blend")
    predictor = SimPredictor(way.unit, way.spec.name, way.resources)
    return predictor.predict(job.prompts, job.output_tokens, feeder).makespan_s
