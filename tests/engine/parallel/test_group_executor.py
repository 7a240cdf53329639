"""What the executor makes of workers that die, stop, fail or disagree on some ranks: ranks and
their workers are sockets here."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, Serving, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost, StillRunning
from muxcluster.engine.parallel import rank_owners
from muxcluster.engine.parallel.group_executor import GroupExecutor
from muxcluster.engine.parallel.rank_link import RankLost
from muxcluster.engine.parallel.rank_owners import RankOwnerLink
from muxcluster.engine.processes.liveness import Patience, Pulse
from muxcluster.engine.processes.losses import MAX_BLANK
from tests.engine.fakes import fake_spec
from tests.engine.parallel.ranks import over_ranks
from tests.engine.processes.test_admissions import admission, job_of


class SocketOwner(RankOwnerLink):
    """A rank without a process; the test holds the far ends of all its streams."""

    latest: dict[int, "SocketOwner"] = {}
    pids: dict[tuple[int, int], int] = {}
    """Of the next process of a (rank, worker); else this very one, which always seems to work."""

    def __init__(self, rank: int, folder: str, patience: Patience) -> None:
        SocketOwner.latest[rank] = self
        self.rank, self.folder = rank, folder
        self.silence_s = patience.silence_s
        self.pulse = Pulse(os.getpid())
        self.control, self.far_control = socket.socketpair()
        self.far: dict[int, FrameSocket] = {}
        self.is_dead = False
        self.num_kills = self.num_reaps = 0

    @property
    def pid(self) -> int:
        return os.getpid()

    def fileno(self) -> int:
        return self.control.fileno()

    def load(self, spec: UnitSpec) -> None:
        self.far_control.send(b"loaded")

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        self.control.recv(6)
        return ()

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        if self.is_dead:
            raise RankLost(f"rank {self.rank} died")
        if worker_id in self.far:
            self.far[worker_id].close()
        ours, theirs = socket.socketpair()
        ours.settimeout(self.silence_s)
        self.far[worker_id] = FrameSocket(theirs)
        self.far[worker_id].send(encode(Serving()))
        return FrameSocket(ours), self.pids.pop((self.rank, worker_id), os.getpid())

    def kill(self) -> None:
        self.num_kills += 1

    def close(self) -> None:
        self.control.close()
        self.far_control.close()
        for far in self.far.values():
            far.close()

    def reap(self, grace_s: float) -> None:
        self.num_reaps += 1

    def take(self, worker_id: int) -> Launch:
        """The next job that the worker was given."""
        frame = self.far[worker_id].recv()
        assert frame is not None
        launch = decode(frame)
        assert isinstance(launch, Launch)
        return launch

    def answer(self, worker_id: int, *tokens: int) -> None:
        """Take a job and say that it is done."""
        counts = np.ones(len(tokens), dtype=np.int32)
        sampled = np.asarray(tokens, dtype=np.int32)
        job_id = self.take(worker_id).job.job_id
        done = Done(JobResult(job_id, sampled, counts, 0.1, {}, {}))
        self.far[worker_id].send(encode(done))

    def fail(self, worker_id: int, num_collectives: int) -> None:
        job_id = self.take(worker_id).job.job_id
        self.far[worker_id].send(encode(Failed(job_id, "no memory", num_collectives)))


@pytest.fixture
def asleep(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """Process id of a child that does nothing; it stands for the processes of the parameter."""
    places = getattr(request, "param", ())
    if not places:
        yield None
        return
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        SocketOwner.pids.update(dict.fromkeys(places, child.pid))
        yield child.pid
        child.kill()


def asleep_are(*places: tuple[int, int]) -> pytest.MarkDecorator:
    """Processes of these (rank, worker) do nothing."""
    return pytest.mark.parametrize("asleep", [places], indirect=True)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, asleep: int | None) -> Iterator[GroupExecutor]:
    monkeypatch.setattr(rank_owners, "RankOwnerLink", SocketOwner)
    monkeypatch.setattr("muxcluster.engine.parallel.group_executor.RankOwnerLink", SocketOwner)
    executor = GroupExecutor(over_ranks(fake_spec(), partition="threads"), Patience(silence_s=0.2))
    executor.start()
    yield executor
    executor.close()


def ranks() -> tuple[SocketOwner, SocketOwner]:
    return SocketOwner.latest[0], SocketOwner.latest[1]


def heard(executor: GroupExecutor) -> list[Outcome]:
    """The next outcomes of jobs and ranks."""
    for _ in range(200):
        outcomes = [o for o in executor.wait(5) if not isinstance(o, StillRunning)]
        if outcomes:
            return outcomes
    raise AssertionError("nothing happened")


def finish_one(executor: GroupExecutor, worker_id: int, job_id: int = 90) -> None:
    executor.launch(replace(job_of(worker_id, [3]), job_id=job_id))
    executor.wait(0.0)  # new processes say that they take jobs
    for rank in ranks():
        rank.answer(worker_id, 7)
    (outcome,) = heard(executor)
    assert isinstance(outcome, JobDone)


def group_lost(executor: GroupExecutor, *, says: str, has_started: bool = True) -> None:
    """Worker 0's job failed and it has new processes on all ranks; worker 1's job ends well."""
    before = [dict(rank.far) for rank in ranks()]
    (failed,) = heard(executor)
    assert isinstance(failed, JobFailed)
    assert (failed.job_id, failed.worker_id, failed.has_started) == (10, 0, has_started)
    assert says in failed.message
    assert executor.is_recovering
    for rank, old in zip(ranks(), before, strict=True):
        assert rank.far[0] is not old[0]
        assert rank.far[1] is old[1]
        assert rank.num_kills == 0
    for rank in ranks():
        rank.answer(1, 8)
    (ended,) = heard(executor)
    assert isinstance(ended, JobDone) and ended.result.job_id == 11
    finish_one(executor, 0)
    assert not executor.is_recovering


@pytest.fixture
def both(executor: GroupExecutor) -> GroupExecutor:
    """Both workers have started, and each has a job."""
    for worker_id in (0, 1):
        finish_one(executor, worker_id)
        executor.launch(replace(job_of(worker_id, [3]), job_id=10 + worker_id))
    return executor


def test_jobs_of_two_workers_overlap(both: GroupExecutor) -> None:
    first, second = ranks()
    second.answer(0, 7)
    first.answer(1, 8)
    assert [o for o in both.wait(0.05) if not isinstance(o, StillRunning)] == []
    second.answer(1, 8)
    (one,) = heard(both)
    first.answer(0, 7)
    (two,) = heard(both)
    assert isinstance(one, JobDone) and isinstance(two, JobDone)
    assert [one.result.job_id, two.result.job_id] == [11, 10]


def test_a_process_that_dies_restarts_its_group_alone(both: GroupExecutor) -> None:
    ranks()[0].answer(0, 7)
    ranks()[1].take(0)
    ranks()[1].far[0].close()
    group_lost(both, says="process on rank 1 died")


def test_a_job_that_no_rank_took_has_not_started(executor: GroupExecutor) -> None:
    for worker_id in (0, 1):
        finish_one(executor, worker_id)
    for rank in ranks():
        rank.far[0].close()
    for worker_id in (0, 1):
        executor.launch(replace(job_of(worker_id, [3]), job_id=10 + worker_id))
    group_lost(executor, says="died", has_started=False)


def test_a_job_that_failed_on_one_rank_restarts_the_group(both: GroupExecutor) -> None:
    ranks()[0].answer(0, 7)
    ranks()[1].fail(0, num_collectives=3)
    group_lost(both, says="failed on some ranks only")


def test_a_rank_that_waits_for_one_that_failed_is_given_up_soon(both: GroupExecutor) -> None:
    """It seems to work: this process does."""
    ranks()[0].fail(0, num_collectives=3)
    group_lost(both, says="its job failed on some ranks only")


def test_a_job_that_fails_on_all_ranks_is_no_loss(both: GroupExecutor) -> None:
    far = [rank.far[0] for rank in ranks()]
    for rank in ranks():
        rank.fail(0, num_collectives=3)
    assert heard(both) == [JobFailed(10, 0, "no memory")]
    assert [rank.far[0] for rank in ranks()] == far


def test_ranks_that_disagree_in_memory_all_start_again(both: GroupExecutor) -> None:
    first, second = ranks()
    first.answer(1, 8)
    second.answer(1, 8)
    first.answer(0, 7)
    second.answer(0, 6)
    outcomes = heard(both)
    if len(outcomes) == 1:  # the first job was heard of alone
        outcomes += heard(both)
    ended, lost = outcomes
    assert isinstance(ended, JobDone) and ended.result.job_id == 11
    assert isinstance(lost, OwnerLost)
    assert "ranks sampled different tokens" in lost.message
    assert first.num_kills == second.num_kills == first.num_reaps == second.num_reaps == 1
    both.restart()
    assert not {first, second} & set(ranks())
    finish_one(both, 0)


def test_a_dead_owner_loses_all_ranks(both: GroupExecutor) -> None:
    ranks()[1].far_control.close()
    (lost,) = heard(both)
    assert isinstance(lost, OwnerLost)
    assert "rank 1 died" in lost.message
    both.restart()
    finish_one(both, 1)


def test_a_worker_that_cannot_be_forked_again_loses_all_ranks(both: GroupExecutor) -> None:
    ranks()[0].is_dead = True
    ranks()[1].far[0].close()
    (lost,) = heard(both)
    assert isinstance(lost, OwnerLost)
    assert "rank 0 died" in lost.message


def test_new_processes_are_told_the_sampling_rules_again(both: GroupExecutor) -> None:
    for rank in ranks():
        rank.answer(0, 7)
    heard(both)
    first = replace(job_of(0, [5], (admission(5, seed=1),)), job_id=20)
    both.launch(first)
    for rank in ranks():
        rank.answer(0, 7)
    heard(both)
    ranks()[0].far[0].close()
    for _ in range(100):
        both.wait(0.05)
        if both.is_recovering:
            break
    both.launch(replace(job_of(0, [5]), job_id=21))
    both.wait(0.2)
    assert [len(rank.take(0).job.admissions) for rank in ranks()] == [1, 1]


def test_workers_that_keep_dying_are_given_up(executor: GroupExecutor) -> None:
    with pytest.raises(EngineFailure, match="worker 0 of unit-0 keeps dying"):
        for _ in range(100 * MAX_BLANK):
            ranks()[0].far[0].close()
            executor.wait(5)


@asleep_are((0, 0), (1, 0))
def test_ranks_that_all_wait_for_each_other_are_replaced(both: GroupExecutor) -> None:
    group_lost(both, says="no rank goes on with its job")


@asleep_are((0, 0))
def test_a_rank_may_wait_long_for_one_that_works(both: GroupExecutor) -> None:
    beats = [outcome for _ in range(12) for outcome in both.wait(5)]
    assert set(map(type, beats)) == {StillRunning}


@asleep_are((1, 0))
def test_an_idle_process_that_is_stopped_is_replaced(both: GroupExecutor, asleep: int) -> None:
    for rank in ranks():
        rank.answer(0, 7)
    heard(both)
    far = [rank.far[0] for rank in ranks()]
    os.kill(asleep, signal.SIGSTOP)
    for _ in range(100):
        both.wait(5)
        if all(rank.far[0] is not old for rank, old in zip(ranks(), far, strict=True)):
            return
    raise AssertionError("it was not replaced")


def test_a_stopped_owner_loses_all_ranks(both: GroupExecutor) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ranks()[0].pulse = Pulse(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        (lost,) = heard(both)
        child.kill()
    assert isinstance(lost, OwnerLost)
    assert "rank 0 was stopped" in lost.message
