"""Jobs side by side: work is conserved, by hand-computed cases."""

import numpy as np
import pytest

from muxcluster.core.job import Job, Phase, Rows, TableDelta
from muxcluster.placement.cost import slowdown
from muxcluster.sim.core.concurrency import Concurrency
from muxcluster.sim.core.timing import Work


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
