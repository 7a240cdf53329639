"""One worker's jobs: begun before the last has ended, ended in order, never after a failure."""

import time
from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.job import Job, JobResult
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.workers.pipeline import REFUSED, Pipeline
from tests.engine.processes.test_admissions import job_of

FIRST = job_of(0, [3, 4])
SECOND = replace(FIRST, job_id=2, follows=1)
THIRD = replace(FIRST, job_id=3, follows=2)


class Given:
    """A job on a device that ends when the test says so."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.is_done = False
        self.error: Exception | None = None
        self.was_awaited = False
        self.began_s = time.monotonic()

    def result(self) -> JobResult:
        self.was_awaited = True
        if self.error is not None:
            raise self.error
        rows, seconds = self.job.rows, time.monotonic() - self.began_s
        return JobResult(self.job.job_id, rows.table_rows, rows.counts, seconds, {}, {})


class Device:
    def __init__(self) -> None:
        self.given: list[Given] = []
        self.error: Exception | None = None
        self.has_host = False

    def waits(self, job: Job) -> bool:
        return self.has_host

    def launch(self, job: Job) -> Given:
        if self.error is not None:
            raise self.error
        self.given.append(Given(job))
        return self.given[-1]

    def record_next(self) -> bool:
        return False


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def pipeline(device: Device) -> Pipeline:
    return Pipeline(device)


def ids(outcomes: list[JobDone | JobFailed]) -> list[int]:
    return [each.result.job_id for each in outcomes if isinstance(each, JobDone)]


def test_the_next_job_begins_before_the_first_has_ended(device: Device, pipeline: Pipeline) -> None:
    assert not pipeline.must_end
    pipeline.begin(FIRST)
    assert not pipeline.must_end
    pipeline.begin(SECOND)
    assert pipeline.must_end, "two are enough"
    assert [each.job for each in device.given] == [FIRST, SECOND]
    assert not device.given[0].was_awaited
    assert ids([pipeline.end()]) == [1]
    assert not pipeline.must_end
    pipeline.begin(THIRD)
    assert ids([pipeline.end(), pipeline.end()]) == [2, 3]
    assert len(pipeline) == 0


def test_a_job_that_has_ended_is_told_at_once(device: Device, pipeline: Pipeline) -> None:
    pipeline.begin(FIRST)
    device.given[0].is_done = True
    assert pipeline.must_end


def test_what_follows_a_job_that_could_not_begin_is_refused(
    device: Device, pipeline: Pipeline
) -> None:
    device.error = ValueError("no")
    pipeline.begin(FIRST)
    device.error = None
    assert pipeline.must_end
    pipeline.begin(SECOND)
    pipeline.begin(THIRD)
    pipeline.begin(replace(FIRST, job_id=4))
    outcomes = [pipeline.end() for _ in range(4)]
    assert outcomes[:3] == [
        JobFailed(1, 0, "ValueError: no"),
        JobFailed(2, 0, REFUSED),
        JobFailed(3, 0, REFUSED),
    ]
    assert ids(outcomes) == [4]
    assert [each.job.job_id for each in device.given] == [4]


def test_a_new_worker_refuses_what_follows_a_job_of_the_old_one(pipeline: Pipeline) -> None:
    pipeline.begin(SECOND)
    assert pipeline.end() == JobFailed(2, 0, REFUSED)


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_the_host_takes_part_in_keeps_no_earlier_result_waiting(
    device: Device, pipeline: Pipeline, fails: bool
) -> None:
    """Its launch returns with its end; so it is launched when the job before it has been told of,
    and never after one that failed."""
    pipeline.begin(FIRST)
    device.has_host = True
    pipeline.begin(SECOND)
    assert [each.job for each in device.given] == [FIRST]
    device.given[0].error = RuntimeError("late") if fails else None
    assert isinstance(pipeline.end(), JobFailed if fails else JobDone)
    assert pipeline.must_end
    assert isinstance(pipeline.end(), JobFailed if fails else JobDone)
    assert len(device.given) == (1 if fails else 2)


@pytest.mark.parametrize("fails_too", [False, True])
def test_what_has_begun_after_a_job_that_fails_is_awaited_and_refused(
    device: Device, pipeline: Pipeline, fails_too: bool
) -> None:
    """Before the failure is told: blocks that it writes to may be given away then."""
    pipeline.begin(FIRST)
    pipeline.begin(SECOND)
    device.given[0].error = RuntimeError("late")
    if fails_too:
        device.given[1].error = RuntimeError("as well")
    assert pipeline.end() == JobFailed(1, 0, "RuntimeError: late")
    assert device.given[1].was_awaited
    assert pipeline.must_end
    assert pipeline.end() == JobFailed(2, 0, REFUSED)
    pipeline.begin(THIRD)
    assert pipeline.end() == JobFailed(3, 0, REFUSED)


def test_jobs_of_other_workers_in_between_change_nothing(
    device: Device, pipeline: Pipeline
) -> None:
    """All workers of a unit may be one process."""
    other = replace(FIRST, job_id=7, worker_id=1)
    device.error = ValueError("no")
    pipeline.begin(FIRST)
    device.error = None
    pipeline.begin(other)
    pipeline.begin(SECOND)
    pipeline.begin(replace(other, job_id=8, follows=7))
    assert ids([pipeline.end() for _ in range(4)]) == [7, 8]


def test_a_job_takes_as_long_as_the_device_was_at_it(device: Device, pipeline: Pipeline) -> None:
    """From the end of the one before, where it was launched earlier than that."""
    pipeline.begin(FIRST)
    pipeline.begin(SECOND)
    device.given[0].began_s -= 100.0
    device.given[1].began_s -= 90.0
    first, second = pipeline.end(), pipeline.end()
    assert isinstance(first, JobDone) and isinstance(second, JobDone)
    assert first.result.seconds >= 100.0
    assert second.result.seconds < 90.0
    assert np.array_equal(second.result.tokens, SECOND.rows.table_rows)
