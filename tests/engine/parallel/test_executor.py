"""What the executor makes of ranks that die, stop, fail or disagree: ranks are sockets here."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.job import JobResult
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome, OwnerLost, StillRunning
from muxcluster.engine.parallel import team
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.parallel.rank_link import RankLink
from muxcluster.engine.processes.liveness import Patience, Pulse
from muxcluster.engine.processes.losses import MAX_BLANK
from tests.engine.fakes import fake_spec
from tests.engine.parallel.ranks import over_ranks
from tests.engine.processes.test_admissions import job_of


class SocketRank(RankLink):
    """A rank without a process of its own; the test holds the far end of its stream."""

    latest: dict[int, "SocketRank"] = {}
    refusal: Exception | None = None

    def __init__(self, rank: int, meeting_point: Path, patience: Patience) -> None:
        SocketRank.latest[rank] = self
        self.rank = rank
        self.pulse, self.standing = Pulse(os.getpid()), Pulse(os.getpid())
        self.meeting_point = meeting_point
        self.num_kills = self.num_reaps = 0
        self._num_open = 0
        ours, theirs = socket.socketpair()
        ours.settimeout(patience.silence_s)
        self._control, self.far = FrameSocket(ours), FrameSocket(theirs)

    @property
    def pid(self) -> int:
        return os.getpid()

    def load(self, spec: UnitSpec) -> None:
        self.far.send(b"loaded")

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        self._control.recv()
        if SocketRank.refusal and self.rank:
            raise SocketRank.refusal
        return ()

    def kill(self) -> None:
        self.num_kills += 1

    def reap(self, grace_s: float) -> None:
        self.num_reaps += 1
        self.far.close()

    def take(self) -> int:
        """The id of the next job it was given."""
        frame = self.far.recv()
        assert frame is not None
        launch = decode(frame)
        assert isinstance(launch, Launch)
        return launch.job.job_id

    def answer(self, *tokens: int) -> None:
        """Take a job and say that it is done."""
        self.done(self.take(), *tokens)

    def done(self, job_id: int, *tokens: int) -> None:
        counts = np.ones(len(tokens), dtype=np.int32)
        sampled = np.asarray(tokens, dtype=np.int32)
        self.far.send(encode(Done(JobResult(job_id, sampled, counts, 0.1, {}, {}))))

    def fail(self, num_collectives: int) -> None:
        """Take a job and say that it failed."""
        self.far.send(encode(Failed(self.take(), "no memory", num_collectives)))


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> RanksExecutor:
    monkeypatch.setattr(team, "RankLink", SocketRank)
    monkeypatch.setattr(SocketRank, "refusal", None)
    executor = RanksExecutor(over_ranks(fake_spec()), Patience(silence_s=0.2))
    executor.start()
    return executor


def ranks() -> tuple[SocketRank, SocketRank]:
    return SocketRank.latest[0], SocketRank.latest[1]


def heard(executor: RanksExecutor) -> list[Outcome]:
    """The next outcomes of jobs and ranks."""
    for _ in range(100):
        outcomes = [o for o in executor.wait(5) if not isinstance(o, StillRunning)]
        if outcomes:
            return outcomes
    raise AssertionError("nothing happened")


def lost(executor: RanksExecutor, says: str) -> None:
    """All ranks are ended, and a restart makes others that work."""
    first, second = ranks()
    (outcome,) = heard(executor)
    assert isinstance(outcome, OwnerLost)
    assert says in outcome.message
    assert first.num_kills == second.num_kills == 1
    assert first.num_reaps == second.num_reaps == 1
    assert executor.is_recovering
    executor.restart()
    assert not executor.is_recovering
    assert not {first, second} & set(ranks())
    finish_one(executor)


def finish_one(executor: RanksExecutor) -> None:
    executor.launch(job_of(0, [3]))
    for rank in ranks():
        rank.answer(7)
    (outcome,) = heard(executor)
    assert isinstance(outcome, JobDone)


def test_jobs_of_two_workers_overlap(executor: RanksExecutor) -> None:
    """A job has ended when all ranks have answered, in whatever order they end jobs of workers."""
    first, second = ranks()
    for worker_id in (0, 1):
        executor.launch(replace(job_of(worker_id, [3]), job_id=10 + worker_id))
    assert [rank.take() for rank in (first, second) for _ in range(2)] == [10, 11, 10, 11]
    first.done(10, 7)
    second.done(11, 8)
    assert [o for o in executor.wait(0.05) if not isinstance(o, StillRunning)] == []
    first.done(11, 8)
    (one,) = heard(executor)
    second.done(10, 7)
    (two,) = heard(executor)
    assert isinstance(one, JobDone) and isinstance(two, JobDone)
    assert [one.result.job_id, two.result.job_id] == [11, 10]
    assert [one.result.tokens.tolist(), two.result.tokens.tolist()] == [[8], [7]]
    executor.close()
    assert not first.meeting_point.parent.exists()


def test_a_dead_rank_takes_the_others_with_it(executor: RanksExecutor) -> None:
    executor.launch(job_of(0, [3]))
    ranks()[0].answer(7)
    ranks()[1].far.close()
    lost(executor, "rank 1 died")
    executor.close()


def test_a_launch_to_a_dead_rank_is_a_loss(executor: RanksExecutor) -> None:
    ranks()[0].far.close()
    executor.launch(job_of(0, [3]))
    lost(executor, "rank 0 died")
    executor.close()


def test_ranks_that_disagree_start_again(executor: RanksExecutor) -> None:
    executor.launch(job_of(0, [3]))
    for token, rank in enumerate(ranks()):
        rank.answer(token)
    lost(executor, "ranks sampled different tokens")
    executor.close()


def test_a_job_that_fails_on_all_ranks_is_no_loss(executor: RanksExecutor) -> None:
    executor.launch(job_of(1, [3]))
    for rank in ranks():
        rank.fail(num_collectives=3)
    assert heard(executor) == [JobFailed(1, 1, "no memory")]
    finish_one(executor)
    executor.close()


def test_a_rank_that_waits_for_one_that_failed_is_given_up_soon(executor: RanksExecutor) -> None:
    """It seems to work (this process does), as a GPU does that waits for another."""
    executor.launch(job_of(0, [3]))
    ranks()[1].fail(num_collectives=3)
    lost(executor, "a job did not come to an end")
    executor.close()


def test_a_rank_that_cannot_load_ends_the_start(executor: RanksExecutor, monkeypatch) -> None:
    monkeypatch.setattr(SocketRank, "refusal", LoadError("config.json", "no plan"))
    other = RanksExecutor(over_ranks(fake_spec()))
    with pytest.raises(LoadError, match="no plan"):
        other.start()
    assert all(rank.num_kills == rank.num_reaps == 1 for rank in ranks())
    other.close()
    executor.close()


def test_ranks_that_keep_dying_are_given_up(executor: RanksExecutor) -> None:
    for _ in range(MAX_BLANK):
        ranks()[0].far.close()
        assert isinstance(heard(executor)[0], OwnerLost)
        executor.restart()
    ranks()[0].far.close()
    assert isinstance(heard(executor)[0], OwnerLost)
    with pytest.raises(EngineFailure, match="owner of unit-0 keeps dying"):
        executor.restart()
    executor.close()


def test_a_restart_goes_on_where_new_ranks_cannot_load(
    executor: RanksExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks()[0].far.close()
    assert isinstance(heard(executor)[0], OwnerLost)
    refusals = [EngineFailure("out of memory")]
    original = SocketRank.loaded

    def loaded(self: SocketRank, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        if refusals:
            raise refusals.pop()
        return original(self, spec)

    monkeypatch.setattr(SocketRank, "loaded", loaded)
    executor.restart()
    finish_one(executor)
    executor.close()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """Process id of a child that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child.pid
        child.kill()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_rank_that_is_stopped_is_lost(
    executor: RanksExecutor, sleeper: int, is_busy: bool
) -> None:
    """Though the other seems to work, as a GPU does that waits for it."""
    ranks()[1].standing = Pulse(sleeper)
    if is_busy:
        executor.launch(job_of(0, [3]))
    os.kill(sleeper, signal.SIGSTOP)
    lost(executor, "rank 1 was stopped")
    executor.close()


def test_ranks_that_all_wait_for_each_other_are_lost(executor: RanksExecutor, sleeper: int) -> None:
    for rank in ranks():
        rank.pulse = Pulse(sleeper)
    executor.launch(job_of(0, [3]))
    lost(executor, "no rank goes on with its job")
    executor.close()


def test_a_rank_may_wait_long_for_one_that_works(executor: RanksExecutor, sleeper: int) -> None:
    ranks()[0].pulse = Pulse(sleeper)
    executor.launch(job_of(0, [3]))
    beats = [outcome for _ in range(12) for outcome in executor.wait(5)]
    assert beats
    assert set(map(type, beats)) == {StillRunning}
    executor.close()
