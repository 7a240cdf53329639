"""Jobs of two models predicted at once and one after the other: which is faster depends."""

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import Unplanned, feeder_of
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import GPUS
from muxcluster.sim.batch.joint import JointPredictor, ModelJob
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.batch.together import OrderedJob, Together, compare_together
from tests.sim.cases import SHAPE, sim_unit

RESOURCES = resource_model(SHAPE, GPUS["A100-80GB"])
COLUMNS = 1200
COMPUTE, MEMORY = Kind(1.0, 1, 0, 1000, 8), Kind(1.0, 1, 0, 50, 200)
ALL = 10_000


def _job(kind: Kind, count: int = 80) -> OrderedJob:
    made = mixed_job([kind], count, np.random.default_rng(0))
    prompts, size_bytes = flat_prompts(made.ids, made.offsets), COLUMNS * 16 * RESOURCES.kv_bytes
    return OrderedJob(
        Unplanned(prompts, made.output_tokens, RESOURCES, size_bytes, 16), "dfs", are_known=True
    )


def _found(lane: str, first: Kind, second: Kind, num_sampled: int = ALL) -> Together:
    unit = sim_unit(num_columns=COLUMNS, lane=lane, max_seqs=256)
    return compare_together(unit, {"a": _job(first), "b": _job(second)}, num_sampled)


def test_side_by_side_compute_and_memory_gain() -> None:
    found = _found("adbs", COMPUTE, MEMORY)
    assert found.joint_s < 0.95 * found.one_after_other_s
    assert found.is_faster


def test_in_turns_two_jobs_of_decode_lose() -> None:
    # every step reads one model's weights for half of the rows
    found = _found("mixed", MEMORY, MEMORY)
    assert found.joint_s > 1.1 * found.one_after_other_s
    assert not found.is_faster


def test_whole_jobs_are_predicted_as_the_predictors_do() -> None:
    unit = sim_unit(num_columns=COLUMNS, lane="adbs", max_seqs=256)
    asked = {"a": _job(COMPUTE), "b": _job(MEMORY)}
    jobs = {model: each.job for model, each in asked.items()}
    found = compare_together(unit, asked, ALL)

    def fed(job: Unplanned) -> ModelJob:
        return ModelJob(job.prompts, job.output_tokens, feeder_of(job.with_tree(), "dfs"))

    joint = JointPredictor(unit, dict.fromkeys(jobs, RESOURCES))
    expected = joint.predict({model: fed(job) for model, job in jobs.items()}).together.makespan_s
    assert found.joint_s == pytest.approx(expected)
    for model, job in jobs.items():
        alone = SimPredictor(unit, model, RESOURCES)
        feeder = feeder_of(job.with_tree(), "dfs")
        seconds = alone.predict(job.prompts, job.output_tokens, feeder).makespan_s
        assert found.apart_s[model] == pytest.approx(seconds)


@pytest.mark.slow
def test_a_sample_of_all_jobs_stands_for_them() -> None:
    unit = sim_unit(num_columns=COLUMNS, lane="adbs", max_seqs=256)
    # of fewer, filling and draining the unit would be much of the time
    jobs = {"a": _job(COMPUTE, 240), "b": _job(COMPUTE, 480)}
    whole, part = compare_together(unit, jobs, ALL), compare_together(unit, jobs, 360)
    assert part != whole
    for model in jobs:
        assert part.apart_s[model] == pytest.approx(whole.apart_s[model], rel=0.1)
    assert part.joint_s == pytest.approx(whole.joint_s, rel=0.1)
