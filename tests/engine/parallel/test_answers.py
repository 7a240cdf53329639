"""What the unit makes of the ranks' answers to one job, agreeing or not."""

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed
from muxcluster.core.job import JobResult
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.parallel.answers import Answers, MemoryDiffers, OutOfStep
from tests.engine.processes.test_admissions import job_of


def done(job_id: int, *tokens: int) -> Done:
    counts = np.ones(len(tokens), dtype=np.int32)
    return Done(JobResult(job_id, np.asarray(tokens, dtype=np.int32), counts, 0.1, {}, {}))


def of_one_job() -> tuple[Answers, int]:
    job = job_of(0, [3])
    return Answers(job, 2), job.job_id


def test_rank_0_answers_when_all_have() -> None:
    answers, job_id = of_one_job()
    first = done(job_id, 7)
    answers.take(1, done(job_id, 7))
    assert answers.outcome() is None
    answers.take(0, first)
    assert answers.outcome() == JobDone(first.result)


def test_a_job_that_fails_alike_everywhere_has_failed() -> None:
    answers, job_id = of_one_job()
    answers.take(0, Failed(job_id, "no memory", 4))
    assert answers.is_split
    answers.take(1, Failed(job_id, "no memory", 4))
    assert answers.outcome() == JobFailed(job_id, 0, "no memory")
    assert not answers.is_split


@pytest.mark.parametrize(
    ("other", "error", "says"),
    [
        (lambda job_id: done(job_id, 8), MemoryDiffers, "different tokens"),
        (lambda job_id: Failed(job_id, "no memory", 4), OutOfStep, "on some ranks only: no memory"),
    ],
)
def test_ranks_that_disagree(other, error, says) -> None:
    answers, job_id = of_one_job()
    answers.take(0, done(job_id, 7))
    answers.take(1, other(job_id))
    with pytest.raises(error, match=says):
        answers.outcome()


def test_failures_at_different_places_are_out_of_step() -> None:
    answers, job_id = of_one_job()
    answers.take(0, Failed(job_id, "no memory", 4))
    answers.take(1, Failed(job_id, "no memory", 5))
    with pytest.raises(OutOfStep, match="on some ranks only"):
        answers.outcome()


def test_an_answer_out_of_turn() -> None:
    answers, job_id = of_one_job()
    with pytest.raises(OutOfStep, match="out of turn"):
        answers.take(0, done(job_id + 1, 7))
    answers.take(0, done(job_id, 7))
    with pytest.raises(OutOfStep, match="out of turn"):
        answers.take(0, done(job_id, 7))
