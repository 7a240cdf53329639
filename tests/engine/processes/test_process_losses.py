"""What the process executor makes of dying workers and owners, with an owner of sockets alone."""

import os
import select
import socket
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Launch, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost, StillRunning
from muxcluster.engine.processes import executor as processes
from muxcluster.engine.processes import launcher as grounds
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.processes.liveness import Patience, Pulse
from muxcluster.engine.processes.losses import MAX_BLANK
from tests.engine.fakes import fake_spec
from tests.engine.processes.test_admissions import admission, job_of


class SocketOwner:
    """Stands in for OwnerLink: no process; the test holds the far ends of all streams."""

    latest: "SocketOwner"
    max_forks = 1_000

    def __init__(
        self, patience: Patience, module: str | None, environment: Mapping[str, str]
    ) -> None:
        assert module is None
        assert environment["OMP_NUM_THREADS"] == "1"
        SocketOwner.latest = self
        self.pulse = Pulse(os.getpid())
        ours, self.far_control = socket.socketpair()
        self.control = FrameSocket(ours)
        self.far: dict[int, FrameSocket] = {}
        self.num_forks = 0
        self.is_dead = False
        self.is_stopped = False

    def load(self, spec: UnitSpec) -> None:
        assert spec.unit_id == "unit-0"

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        if self.is_dead or self.num_forks == self.max_forks:
            raise BrokenPipeError
        self.num_forks += 1
        ours, theirs = socket.socketpair()
        self.far[worker_id] = FrameSocket(theirs)
        self.far[worker_id].send(encode(Serving()))
        return FrameSocket(ours), os.getpid()

    load_s = 0.0

    def kill(self) -> None:
        self.is_dead = True

    def stop(self) -> None:
        self.is_stopped = True
        self.control.close()
        self.far_control.close()
        for frames in self.far.values():
            frames.close()


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> ProcessExecutor:
    for module in (grounds, processes):
        monkeypatch.setattr(module, "OwnerLink", SocketOwner)
    executor = ProcessExecutor(fake_spec())
    executor.start()
    return executor


def heard(executor: ProcessExecutor) -> list[Outcome]:
    """The next outcomes of jobs and owners."""
    for _ in range(20):
        outcomes = [o for o in executor.wait(5) if not isinstance(o, StillRunning)]
        if outcomes:
            return outcomes
    raise AssertionError("nothing happened")


def replaced(executor: ProcessExecutor, num_forks: int) -> None:
    """Wait until the worker that died idle has a successor; no job is to blame."""
    for _ in range(20):
        assert list(executor.wait(5)) == []
        if SocketOwner.latest.num_forks > num_forks:
            return
    raise AssertionError("nobody was forked")


def answer(executor: ProcessExecutor, worker_id: int) -> Launch:
    """Take a launch as a worker would and say that it is done. It is sent to a worker that has
    started, which the executor must have heard."""
    worker = SocketOwner.latest.far[worker_id]
    for _ in range(20):
        if select.select([worker.fileno()], [], [], 0)[0]:
            break
        assert all(isinstance(o, StillRunning) for o in executor.wait(1))
    frame = worker.recv()
    assert frame is not None
    launch = decode(frame)
    assert isinstance(launch, Launch)
    job = launch.job
    result = JobResult(job.job_id, job.rows.table_rows, job.rows.counts, 0.0, {}, {})
    worker.send(encode(Done(result)))
    return launch


def test_a_replaced_worker_is_told_the_rules_again(executor: ProcessExecutor) -> None:
    owner = SocketOwner.latest
    executor.launch(job_of(0, [3], (admission(3, seed=9),)))
    answer(executor, 0)
    (done,) = heard(executor)
    assert isinstance(done, JobDone)
    assert np.array_equal(done.result.tokens, [3])
    executor.launch(job_of(0, [3]))
    owner.far[0].close()
    assert heard(executor) == [JobFailed(1, 0, "its worker process died", has_started=False)]
    executor.launch(job_of(0, [3]))
    (told,) = answer(executor, 0).job.admissions
    assert told.sampling.seed == 9
    assert len(told.tokens) == 0
    executor.close()


def test_a_launch_to_a_dead_worker_fails_in_wait(executor: ProcessExecutor) -> None:
    SocketOwner.latest.far[1].close()
    executor.launch(job_of(1, [3], (admission(3, seed=9),)))
    assert heard(executor) == [JobFailed(1, 1, "its worker process died", has_started=False)]
    executor.close()


def test_an_owner_that_cannot_fork_is_lost_with_all_workers(executor: ProcessExecutor) -> None:
    owner = SocketOwner.latest
    executor.launch(job_of(1, [3], (admission(3, seed=9),)))
    owner.is_dead = True
    owner.far[0].close()
    owner.far[1].close()
    (outcome,) = heard(executor)
    assert isinstance(outcome, OwnerLost)
    assert owner.is_stopped
    executor.restart()
    assert SocketOwner.latest is not owner
    executor.launch(job_of(1, [4], (admission(4, seed=1),)))
    answer(executor, 1)
    assert isinstance(heard(executor)[0], JobDone)
    executor.close()
    executor.close()


def test_workers_that_keep_dying_idle_are_given_up(executor: ProcessExecutor) -> None:
    owner = SocketOwner.latest
    with pytest.raises(EngineFailure, match="worker 0 of unit-0 keeps dying"):
        for _ in range(MAX_BLANK + 1):
            owner.far[0].close()
            replaced(executor, owner.num_forks)
    assert owner.num_forks == 2 + MAX_BLANK
    executor.close()
    assert owner.is_stopped


def test_a_finished_job_forgives_earlier_losses(executor: ProcessExecutor) -> None:
    owner = SocketOwner.latest
    for _ in range(3):
        for _ in range(MAX_BLANK):
            owner.far[0].close()
            replaced(executor, owner.num_forks)
        executor.launch(job_of(0, [3], (admission(3, seed=9),)))
        answer(executor, 0)
        assert isinstance(heard(executor)[0], JobDone)
    executor.close()


def test_an_owner_that_keeps_dying_is_given_up(executor: ProcessExecutor) -> None:
    for _ in range(MAX_BLANK):
        SocketOwner.latest.far_control.close()
        assert isinstance(heard(executor)[0], OwnerLost)
        executor.restart()
    SocketOwner.latest.far_control.close()
    assert isinstance(heard(executor)[0], OwnerLost)
    with pytest.raises(EngineFailure, match="owner of unit-0 keeps dying"):
        executor.restart()
    executor.close()


@pytest.mark.parametrize("num_forks", [0, 1])
def test_a_start_that_fails_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, num_forks: int
) -> None:
    """The owner dies before its first or its second worker; the same executor can start again."""
    for module in (grounds, processes):
        monkeypatch.setattr(module, "OwnerLink", SocketOwner)
    executor = ProcessExecutor(fake_spec())
    with monkeypatch.context() as patch:
        patch.setattr(SocketOwner, "max_forks", num_forks)
        with pytest.raises(EngineFailure, match="lost before it made a worker"):
            executor.start()
    failed = SocketOwner.latest
    assert failed.is_stopped
    assert failed.num_forks == num_forks
    executor.start()
    assert SocketOwner.latest is not failed
    executor.launch(job_of(0, [3], (admission(3, seed=9),)))
    answer(executor, 0)
    assert isinstance(heard(executor)[0], JobDone)
    executor.close()


def test_wake_ends_a_wait_and_never_blocks(executor: ProcessExecutor) -> None:
    waiter = threading.Thread(target=executor.wait, args=(None,))
    waiter.start()
    for _ in range(100_000):
        executor.wake()
    waiter.join(20)
    assert not waiter.is_alive()
    executor.close()
