"""The bench of two models in one unit: a tiny case runs, and its optimum is below every run."""

from pathlib import Path

import pytest

from bench.offline.joint.cases import BALANCED, Case, cases, jobs_of
from bench.offline.joint.picture import draw
from bench.offline.joint.unit import best_split, least_s
from bench.offline.multi_model import Result, run_case
from bench.traces.batchmix import Kind
from muxcluster.offline.choice import summary_of

TINY = Case(
    "tiny",
    {"llama-3.2-1b": (Kind(1.0, 1, 0, 900, 4),), "smollm2-1.7b": (Kind(1.0, 1, 0, 30, 60),)},
)


@pytest.fixture(scope="module")
def result() -> Result:
    return run_case(TINY, 0.5, 0)


@pytest.mark.slow
def test_no_run_is_faster_than_the_cost_model_permits(result: Result) -> None:
    runs_s = [*result.joint_s.values(), *result.unaware_s.values()]
    assert 0 < result.optimum_s < min(runs_s)
    for each in result.alone:
        assert 0 < each.optimum_s < min(each.runs_s.values())
    assert result.optimum_s < sum(each.optimum_s for each in result.alone)


@pytest.mark.slow
def test_the_summary_says_how_many_times_faster(result: Result) -> None:
    found = result.summary()
    best = found["throughput_over_one_after_other"]
    assert best == pytest.approx(result.one_after_other_s / min(result.joint_s.values()))
    assert best == max(found["side_by_side"], found["mixed"])
    assert 0 < found["share_of_optimum"] < 1 < found["permitted"]


@pytest.mark.slow
def test_the_picture_names_its_cases(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    draw({"tiny": result.summary()}, path)
    assert "tiny" in path.read_text(encoding="utf-8")


def test_the_pairs_are_bound_by_compute_and_by_memory_and_the_control_is_not() -> None:
    *pairs, control = cases()
    for case in pairs:
        first, second = (summary_of(job.with_tree()) for job in jobs_of(case, 5.0, 0).values())
        assert first.density > 3 and second.density < 0.7
        assert first.optimum_s == pytest.approx(5.0, rel=0.3)
    for job in jobs_of(control, 30.0, 0).values():
        assert summary_of(job.with_tree()).density == pytest.approx(BALANCED, rel=0.15)


def test_two_models_permit_no_less_than_one_after_the_other() -> None:
    case = cases()[0]
    summaries = {model: summary_of(job.with_tree()) for model, job in jobs_of(case, 5.0, 0).items()}
    alone = [
        least_s({model: case.shapes[model]}, {model: summary})
        for model, summary in summaries.items()
    ]
    assert max(alone) < least_s(case.shapes, summaries) < sum(alone)
    assert best_split(case.shapes, summaries) in (0.5, 0.6)
