"""The unit's end of a worker: time limits, full sockets, jobs that were never taken."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import JobResult
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.processes.job_limits import JobLimits
from muxcluster.engine.processes.worker_link import WorkerLink
from tests.engine.processes.test_admissions import admission, job_of

JOB = job_of(0, [3, 4])
START_BY_S = 360.0


def result(seconds: float) -> JobResult:
    return JobResult(JOB.job_id, JOB.rows.table_rows, JOB.rows.counts, seconds, {}, {})


class Bench:
    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(0.2)
        self.limits = JobLimits(2.0)
        self.far = FrameSocket(theirs)
        # This very process: whoever reads its own state finds it running.
        self.link = WorkerLink(0, FrameSocket(self.ours), os.getpid(), self.limits, START_BY_S)

    def serve(self, now: float) -> None:
        """The worker has started."""
        self.far.send(encode(Serving()))
        assert self.link.hear(now) == ()


@pytest.fixture
def starting() -> Iterator[Bench]:
    """A worker that does not take jobs yet."""
    bench = Bench()
    yield bench
    bench.link.frames.close()
    bench.far.close()


@pytest.fixture
def bench(starting: Bench) -> Bench:
    """One that does."""
    starting.serve(0.0)
    return starting


def test_a_first_job_gets_long_and_later_ones_what_was_measured() -> None:
    limits = JobLimits(2.0)
    assert limits.limit_s(JOB) == 20.0
    limits.measured(JOB, 0.001)
    assert limits.limit_s(JOB) == 2.0
    limits.measured(JOB, 4.0)
    assert limits.limit_s(JOB) == pytest.approx(80.0)
    assert limits.limit_s(replace(JOB, max_steps=3)) == pytest.approx(240.0)
    assert limits.limit_s(replace(JOB, model="other")) == 20.0


def test_a_job_over_its_limit_has_failed(bench: Bench) -> None:
    bench.link.launch(JOB, 100.0)
    assert bench.link.check(119.0) is None
    cause = bench.link.check(121.0)
    assert cause == "its worker process did not come to an end"
    assert bench.link.lose(cause) == (JobFailed(JOB.job_id, 0, cause),)


def test_a_finished_job_is_measured_and_frees_the_worker(bench: Bench) -> None:
    bench.link.launch(JOB, 0.0)
    assert bench.link.num_rows == 2
    bench.far.send(encode(Done(result(0.5))))
    assert [type(each) for each in bench.link.hear(0.0) or ()] == [JobDone]
    assert bench.link.num_rows == 0
    assert bench.limits.limit_s(JOB) == pytest.approx(10.0)
    assert bench.link.check(1e6) is None
    assert bench.link.lose("gone") == ()


def test_a_job_that_raised_counts_as_started(bench: Bench) -> None:
    bench.link.launch(JOB, 0.0)
    bench.far.send(encode(Failed(JOB.job_id, "why")))
    assert bench.link.hear(0.0) == (JobFailed(JOB.job_id, 0, "why", has_started=True),)


@pytest.mark.parametrize("has_started", [True, False])
def test_it_knows_whether_a_dead_worker_had_taken_its_job(bench: Bench, has_started: bool) -> None:
    bench.link.launch(JOB, 0.0)
    if has_started:
        bench.far.recv()
    bench.far.close()
    assert bench.link.hear(0.0) is None
    (failed,) = bench.link.lose("died")
    assert failed.has_started is has_started


def test_a_worker_that_stops_reading_or_writing_does_not_stop_us(bench: Bench) -> None:
    """A frame larger than any socket's buffer, to a worker that does not read."""
    long = replace(admission(3, seed=9), tokens=np.zeros(5_000_000, dtype=np.int32))
    bench.link.launch(replace(JOB, admissions=(long,)), 0.0)
    assert bench.link.check(0.3) == "its worker process hung"


def test_half_an_answer_is_none(bench: Bench) -> None:
    theirs = bench.far._stream
    bench.link.launch(JOB, 0.0)
    theirs.sendall((1000).to_bytes(4, "little") + b"half")
    assert bench.link.hear(0.0) is None


FOLLOWER = replace(JOB, job_id=2, follows=JOB.job_id)


def test_the_time_of_a_follower_starts_when_the_job_before_it_ends(bench: Bench) -> None:
    bench.link.launch(JOB, 100.0)
    bench.link.launch(FOLLOWER, 101.0)
    bench.far.send(encode(Done(result(0.5))))
    assert [type(each) for each in bench.link.hear(115.0) or ()] == [JobDone]
    assert bench.link.num_rows == 2
    assert bench.link.check(124.0) is None
    assert bench.link.check(126.0) == "its worker process did not come to an end"
    assert bench.link.lose("late") == (JobFailed(2, 0, "late"),)


def test_both_jobs_fail_with_their_worker(bench: Bench) -> None:
    """Only the first can have killed it: the second one's frame was not read."""
    bench.link.launch(JOB, 0.0)
    bench.link.launch(FOLLOWER, 0.0)
    bench.far.recv()
    bench.far.close()
    assert bench.link.hear(0.0) is None
    assert bench.link.lose("died") == (
        JobFailed(1, 0, "died", has_started=True),
        JobFailed(2, 0, "died", has_started=False),
    )


def test_a_job_may_come_behind_one_that_will_be_refused(bench: Bench) -> None:
    """The unit forgets the follower of a job that failed, and has not heard of its refusal yet."""
    bench.link.launch(JOB, 0.0)
    bench.link.launch(FOLLOWER, 0.0)
    bench.far.send(encode(Failed(1, "why")))
    bench.link.hear(0.0)
    bench.link.launch(replace(JOB, job_id=3), 0.0)
    bench.far.send(encode(Failed(2, "refused")))
    assert bench.link.hear(0.0) == (JobFailed(2, 0, "refused"),)
    bench.far.send(encode(Failed(3, "why")))
    assert bench.link.hear(0.0) == (JobFailed(3, 0, "why"),)


def test_a_busy_worker_takes_no_other_job(bench: Bench) -> None:
    bench.link.launch(JOB, 0.0)
    with pytest.raises(AssertionError, match="already runs a job"):
        bench.link.launch(replace(JOB, job_id=3), 0.0)


def test_a_start_of_70_seconds_is_not_held_against_the_job(starting: Bench) -> None:
    """Its limit is 20 s; it is sent, and its time begins, when the worker takes jobs."""
    link = starting.link
    link.launch(JOB, 0.0)
    assert [link.check(now) for now in (21.0, 69.0)] == [None, None]
    starting.serve(70.0)
    launched = decode(starting.far.recv() or b"")
    assert isinstance(launched, Launch) and launched.job.job_id == JOB.job_id
    assert link.check(89.0) is None
    assert link.check(91.0) == "its worker process did not come to an end"


def test_a_worker_that_does_not_start_in_time_took_no_job(starting: Bench) -> None:
    """The request is not to blame, and the loss counts as that of an idle worker."""
    link = starting.link
    link.launch(JOB, 0.0)
    link.launch(FOLLOWER, 0.0)
    assert link.check(START_BY_S) is None
    cause = link.check(START_BY_S + 1.0)
    assert cause == "its worker process did not start in time"
    assert link.num_rows == 0
    assert [failed.has_started for failed in link.lose(cause)] == [False, False]


def test_a_large_job_does_not_block_while_the_worker_starts(starting: Bench) -> None:
    """A frame larger than any socket's buffer; the worker reads it after its start."""
    long = replace(admission(3, seed=9), tokens=np.zeros(5_000_000, dtype=np.int32))
    starting.link.launch(replace(JOB, admissions=(long,)), 0.0)
    assert starting.link.check(0.3) is None
    starting.ours.settimeout(60.0)
    starting.far.send(encode(Serving()))
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(starting.far.recv)
        assert starting.link.hear(1.0) == ()
        launched = decode(received.result(60) or b"")
    assert isinstance(launched, Launch)
    assert len(launched.job.admissions[0].tokens) == 5_000_000


def test_a_starting_worker_that_dies_is_gone(starting: Bench) -> None:
    starting.link.launch(JOB, 0.0)
    starting.far.close()
    assert starting.link.hear(0.0) is None
    assert not starting.link.lose("died")[0].has_started
