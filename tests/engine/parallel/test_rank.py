"""One rank's loop: what it answers for jobs that end well, fail, or lose it the device."""

import socket
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job, JobResult, TokenLogprobs
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.gpu.context import ContextLost
from muxcluster.engine.gpu.green.threads import Report
from muxcluster.engine.parallel.rank import RankServer
from tests.engine.fakes import fake_spec
from tests.engine.processes.test_admissions import job_of

LOGPROBS = {0: (TokenLogprobs(7, -0.5, 1),)}


class _Workers:
    """Runs a job at once, on the thread that gives it."""

    def __init__(self, run: Callable[[Job], JobDone | JobFailed | SystemExit]) -> None:
        self._run = run

    def start(self, report: Report) -> None:
        self._report = report

    def give(self, job: Job) -> None:
        self._report(self._run(job))

    def close(self) -> None:
        """Nothing is open."""


def result_of(job: Job) -> JobDone:
    one = np.ones(1, dtype=np.int32)
    return JobDone(JobResult(job.job_id, 7 * one, one, 0.1, LOGPROBS, LOGPROBS))


def refuse(job: Job) -> JobFailed:
    return JobFailed(job.job_id, job.worker_id, "no such block")


def lose_the_device(job: Job) -> SystemExit:
    return ContextLost("an illegal memory access was encountered")


def served(
    rank: int, run: Callable[[Job], JobDone | JobFailed | SystemExit]
) -> list[Done | Failed]:
    """Answers of a rank to two jobs, of worker 0 and of worker 1, after which the unit is gone."""
    ours, theirs = socket.socketpair()
    unit = FrameSocket(ours)
    for number in (1, 2):
        unit.send(encode(Launch(replace(job_of(number - 1, [3]), job_id=number))))
    ours.shutdown(socket.SHUT_WR)
    control = FrameSocket(theirs)
    try:
        RankServer(control, rank, lambda worker_id: 12 + worker_id).serve(_Workers(run))
    finally:
        control.close()
    answers = []
    while (frame := unit.recv()) is not None:
        answers.append(decode(frame))
    unit.close()
    return answers


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_tells_logprobs(rank: int) -> None:
    answers = served(rank, result_of)
    assert [answer.result.job_id for answer in answers] == [1, 2]
    for answer in answers:
        assert isinstance(answer, Done)
        assert answer.result.tokens.tolist() == [7]
        expected = {} if rank else LOGPROBS
        assert answer.result.logprobs == answer.result.prompt_logprobs == expected


def test_a_job_that_raises_is_answered_with_its_workers_collectives_so_far() -> None:
    message = "no such block"
    assert served(1, refuse) == [Failed(1, message, 12), Failed(2, message, 13)]


def test_a_rank_that_lost_its_device_ends() -> None:
    assert served(0, lose_the_device) == []


def test_a_rank_gets_its_device_and_its_part_of_the_threads() -> None:
    spec = replace(fake_spec(), tp=2, num_threads=5, rank_devices=("cuda:4", "cuda:6"))
    assert [spec.of_rank(rank).device for rank in (0, 1)] == ["cuda:4", "cuda:6"]
    assert spec.of_rank(1).num_threads == 2
    plain = replace(fake_spec(), tp=2, num_threads=1)
    assert (plain.of_rank(1).device, plain.of_rank(1).num_threads) == ("cpu", 1)
