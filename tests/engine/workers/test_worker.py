"""The worker's loop on a thread, over real streams, with a runner that may raise."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, Message, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job, JobResult, SlotCopies
from muxcluster.engine.workers.pipeline import REFUSED
from muxcluster.engine.workers.worker import Worker
from tests.engine.blocked import BlockedRunner
from tests.engine.processes.test_admissions import job_of


@dataclass
class Ran:
    """What was launched has ended."""

    ended: JobResult
    is_done = True

    def result(self) -> JobResult:
        return self.ended


class Runner:
    """Raises for a job whose first row is table row 13."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def waits(self, job: Job) -> bool:
        return False

    def launch(self, job: Job) -> "Ran":
        self.jobs.append(job)
        if job.rows.table_rows[0] == 13:
            raise RuntimeError("an unlucky row")
        result = JobResult(job.job_id, job.rows.table_rows, job.rows.counts, 0.0, {}, {})
        return Ran(result)

    def record_next(self) -> bool:
        return False


@dataclass
class Bench:
    unit: FrameSocket
    runner: Runner
    owner_alive: int
    thread: threading.Thread

    def run(self, job: Job) -> Message:
        self.unit.send(encode(Launch(job)))
        frame = self.unit.recv()
        assert frame is not None
        return decode(frame)


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from serving(Runner())


def serving(runner: Any) -> Iterator[Bench]:
    ours, theirs = socket.socketpair()
    alive_read, alive_write = os.pipe()
    worker = Worker(runner, FrameSocket(theirs), alive_read)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    unit = FrameSocket(ours)
    assert decode(unit.recv() or b"") == Serving()
    yield Bench(unit, runner, alive_write, thread)
    unit.close()
    thread.join(20)
    os.close(alive_read)
    theirs.close()


def test_a_job_that_raises_fails_alone(bench: Bench) -> None:
    failed = bench.run(job_of(0, [13]))
    assert isinstance(failed, Failed)
    assert (failed.job_id, failed.message) == (1, "RuntimeError: an unlucky row")
    done = bench.run(job_of(0, [4, 5]))
    assert isinstance(done, Done)
    assert np.array_equal(done.result.tokens, [4, 5])


def test_copies_reach_the_runner_as_they_were_sent(bench: Bench) -> None:
    """Two models' copies, as long as those of a large sequence: more than a socket's buffer."""
    runs = np.arange(3 * 50_000, dtype=np.int64).reshape(-1, 3) << 20
    copies = (
        SlotCopies("narrow", saves=runs, moves=runs[:0], restores=runs[::-2]),
        SlotCopies("wide", saves=runs[:0], moves=runs[5:6], restores=runs[:0]),
    )
    assert isinstance(bench.run(replace(job_of(0, [4]), copies=copies)), Done)
    received = bench.runner.jobs[-1].copies
    assert [each.model for each in received] == ["narrow", "wide"]
    for mine, theirs in zip(copies, received, strict=True):
        for name in ("saves", "moves", "restores"):
            sent, arrived = getattr(mine, name), getattr(theirs, name)
            assert (arrived.dtype, arrived.shape) == (np.int64, sent.shape)
            assert np.array_equal(arrived, sent)


@pytest.mark.parametrize("who", ["unit", "owner"])
def test_it_ends_with_the_unit_and_with_the_owner(bench: Bench, who: str) -> None:
    assert isinstance(bench.run(job_of(0, [1])), Done)
    if who == "owner":
        os.close(bench.owner_alive)
    else:
        bench.unit.close()
    bench.thread.join(20)
    assert not bench.thread.is_alive()


def test_a_follower_is_with_the_device_before_its_predecessor_has_ended() -> None:
    """The worker answers nothing until it has begun both; then in order."""
    runner = BlockedRunner()
    for bench in serving(runner):
        first = job_of(0, [4])
        bench.unit.send(encode(Launch(first)))
        before = runner.begun.get(timeout=20.0)
        bench.unit.send(encode(Launch(replace(first, job_id=2, follows=1))))
        after = runner.begun.get(timeout=20.0)
        assert not before.may_end.is_set()
        before.may_end.set()
        assert answered(bench) == 1
        bench.unit.send(encode(Launch(replace(first, job_id=3, follows=2))))
        last = runner.begun.get(timeout=20.0)
        assert not after.may_end.is_set()
        after.may_end.set()
        last.may_end.set()
        assert [answered(bench), answered(bench)] == [2, 3]


def answered(bench: Bench) -> int:
    """The job that the worker says has ended well."""
    frame = bench.unit.recv()
    assert frame is not None
    message = decode(frame)
    assert isinstance(message, Done)
    return message.result.job_id


def test_a_job_that_raises_takes_its_follower_along(bench: Bench) -> None:
    unlucky = job_of(0, [13])
    bench.unit.send(encode(Launch(unlucky)))
    failed = bench.run(replace(job_of(0, [4]), job_id=2, follows=1))
    assert isinstance(failed, Failed)
    frame = bench.unit.recv()
    assert frame is not None
    assert decode(frame) == Failed(2, REFUSED)
    assert isinstance(bench.run(replace(job_of(0, [4]), job_id=3)), Done)
    assert [job.job_id for job in bench.runner.jobs] == [1, 3]


def test_a_worker_records_what_jobs_wanted_when_it_has_none() -> None:
    runner = BlockedRunner()
    runner.num_wanted = 2
    for bench in serving(runner):
        bench.unit.send(encode(Launch(job_of(0, [4]))))
        begun = runner.begun.get(timeout=20.0)
        assert runner.num_idle == 0
        begun.may_end.set()
        assert answered(bench) == 1
        deadline = time.monotonic() + 20.0
        while runner.num_idle < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert runner.num_idle == 2
