"""Jobs of two models in one unit: all of it runs, and both end at about the same time."""

from functools import cache

import numpy as np

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import GPUS
from muxcluster.sim.batch.joint import JointPrediction, JointPredictor, ModelJob
from tests.sim.cases import SHAPE, sim_unit

RESOURCES = resource_model(SHAPE, GPUS["A100-80GB"])
COLUMNS = 400
KINDS = {"a": (Kind(1.0, 4, 300, 100, 8), 500), "b": (Kind(1.0, 1, 0, 50, 80), 250)}


def _job(kind: Kind, count: int) -> ModelJob:
    made = mixed_job([kind], count, np.random.default_rng(0))
    prompts = flat_prompts(made.ids, made.offsets)
    size_bytes = COLUMNS * 16 * RESOURCES.kv_bytes
    job = Unplanned(prompts, made.output_tokens, RESOURCES, size_bytes, 16)
    return ModelJob(prompts, made.output_tokens, BatchFeeder(job.with_tree(), "dfs"))


@cache
def _ran(lane: str, *, is_joint: bool = True) -> JointPrediction:
    unit = sim_unit(num_columns=COLUMNS, lane=lane)
    jobs = {name: _job(*kind) for name, kind in KINDS.items()}
    resources = dict.fromkeys(jobs, RESOURCES)
    return JointPredictor(unit, resources).predict(jobs, is_joint=is_joint)


def test_every_token_of_both_jobs_runs() -> None:
    jobs = [_job(*kind) for kind in KINDS.values()]
    for found in (_ran("adbs"), _ran("mixed"), _ran("adbs", is_joint=False)):
        assert found.together.prompt_tokens == sum(job.prompts.lengths.sum() for job in jobs)
        assert found.together.output_tokens == sum(job.output_tokens.sum() for job in jobs)
        assert found.together.num_refused == 0
        assert found.together.makespan_s == max(found.end_s.values()) > 0


def test_prefixes_are_computed_once_though_another_model_takes_memory() -> None:
    job = _job(*KINDS["a"])
    made = Unplanned(job.prompts, job.output_tokens, RESOURCES, 1e9, 16)
    assert _ran("adbs").together.saved_tokens >= 0.99 * made.with_tree().tree.saved_tokens > 0


def test_planned_together_the_jobs_end_nearly_together() -> None:
    for lane in ("adbs", "mixed"):
        ends = _ran(lane).end_s.values()
        assert max(ends) < 1.3 * min(ends)


def test_without_quotas_jobs_that_know_of_each_other_end_earlier() -> None:
    unaware = _ran("mixed", is_joint=False).together
    assert _ran("mixed").together.makespan_s < 0.95 * unaware.makespan_s
