"""Jobs side by side: work is conserved, by hand-computed cases."""

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, TableDelta
from muxcluster.sim.concurrency import Concurrency
from muxcluster.sim.timing import Work
from placement.cost import slowdown


def job(job_id: int, max_steps: int = 1) -> Job:
    ints = np.zeros(1, dtype=np.int32)
    rows = Rows(ints, ints, ints + 1, ints == 0)
    return Job(
        job_id, "m", Phase.DECODE, job_id, 0.5, rows, TableDelta(ints, ints, ints), (), max_steps
    )


def test_a_neighbour_slows_a_job_only_while_it_runs() -> None:
    factor = slowdown((0.8, 0.7))
    assert factor > 1.5
    jobs = Concurrency(slowdown)
    jobs.start(job(0), Work(4.0, 0.8), 10.0)
    assert jobs.next_end_s == pytest.approx(14.0)
    jobs.start(job(1), Work(1.0, 0.7), 12.0)
    # the first has 2 s of work left, the second 1 s: the second ends after 1 s at 1 / factor
    assert jobs.next_end_s == pytest.approx(12.0 + factor)
    assert jobs.finish(jobs.next_end_s).job.job_id == 1
    # then 1 s of work is left to the first, alone again
    assert jobs.next_end_s == pytest.approx(12.0 + factor + 1.0)
    assert jobs.finish(jobs.next_end_s).job.job_id == 0
    assert jobs.next_end_s == float("inf")


def test_a_cut_job_ends_with_its_step() -> None:
    jobs = Concurrency(slowdown)
    entry = jobs.start(job(0, max_steps=10), Work(2.0, 0.1), 5.0)
    assert jobs.next_end_s == pytest.approx(25.0)
    jobs.cut(entry, 8.5)
    assert entry.num_steps == 2
    assert jobs.next_end_s == pytest.approx(9.0)
    jobs.cut(entry, 8.9)
    assert jobs.next_end_s == pytest.approx(9.0)


@pytest.mark.parametrize(("now", "steps"), [(5.0, 1), (7.0, 1), (7.1, 2), (9.0, 2), (24.9, 10)])
def test_a_cut_at_a_boundary_adds_no_step(now: float, steps: int) -> None:
    jobs = Concurrency(slowdown)
    entry = jobs.start(job(0, max_steps=10), Work(2.0, 0.1), 5.0)
    jobs.cut(entry, now)
    assert entry.num_steps == steps
