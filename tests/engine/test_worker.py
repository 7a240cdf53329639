"""The worker's loop on a thread, over real streams, with a runner that may raise."""

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, Message, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job, JobResult
from muxcluster.engine.worker import Worker
from tests.engine.test_admissions import job_of


class Runner:
    """Raises for a job whose first row is slot 13."""

    def execute(self, job: Job) -> JobResult:
        if job.rows.slots[0] == 13:
            raise RuntimeError("an unlucky slot")
        return JobResult(job.job_id, job.rows.slots, job.rows.counts, 0.0, {}, {})


@dataclass
class Bench:
    unit: FrameSocket
    owner_alive: int
    thread: threading.Thread

    def run(self, job: Job) -> Message:
        self.unit.send(encode(Launch(job)))
        frame = self.unit.recv()
        assert frame is not None
        return decode(frame)


@pytest.fixture
def bench() -> Iterator[Bench]:
    ours, theirs = socket.socketpair()
    alive_read, alive_write = os.pipe()
    worker = Worker(Runner(), FrameSocket(theirs), alive_read)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    unit = FrameSocket(ours)
    yield Bench(unit, alive_write, thread)
    unit.close()
    thread.join(20)
    os.close(alive_read)
    theirs.close()


def test_a_job_that_raises_fails_alone(bench: Bench) -> None:
    failed = bench.run(job_of(0, [13]))
    assert isinstance(failed, Failed)
    assert (failed.job_id, failed.message) == (1, "RuntimeError: an unlucky slot")
    done = bench.run(job_of(0, [4, 5]))
    assert isinstance(done, Done)
    assert np.array_equal(done.result.tokens, [4, 5])


@pytest.mark.parametrize("who", ["unit", "owner"])
def test_it_ends_with_the_unit_and_with_the_owner(bench: Bench, who: str) -> None:
    assert isinstance(bench.run(job_of(0, [1])), Done)
    if who == "owner":
        os.close(bench.owner_alive)
    else:
        bench.unit.close()
    bench.thread.join(20)
    assert not bench.thread.is_alive()
