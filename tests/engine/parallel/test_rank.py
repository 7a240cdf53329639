"""One rank's loop: what it answers for jobs that end well, fail, or cost it the device."""

import socket
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job, JobResult, TokenLogprobs
from muxcluster.engine.parallel.rank import Rank, rank_spec
from tests.engine.fakes import fake_spec
from tests.engine.processes.test_admissions import job_of

LOGPROBS = {0: (TokenLogprobs(7, -0.5, 1),)}


class _Group:
    num_calls = 12

    def __init__(self, rank: int) -> None:
        self.rank = rank


class _Runner:
    def __init__(self, execute: Callable[[Job], JobResult]) -> None:
        self.execute = execute


def result_of(job: Job) -> JobResult:
    one = np.ones(1, dtype=np.int32)
    return JobResult(job.job_id, 7 * one, one, 0.1, LOGPROBS, LOGPROBS)


def refuse(job: Job) -> JobResult:
    raise ValueError("no such block")


def lose_the_device(job: Job) -> JobResult:
    raise torch.AcceleratorError("an illegal memory access was encountered")


def served(rank: int, execute: Callable[[Job], JobResult]) -> list[Done | Failed]:
    """Answers of a rank to two jobs, after which the unit is gone."""
    ours, theirs = socket.socketpair()
    unit = FrameSocket(ours)
    for job_id in (1, 2):
        unit.send(encode(Launch(replace(job_of(0, [3]), job_id=job_id))))
    ours.shutdown(socket.SHUT_WR)
    control = FrameSocket(theirs)
    try:
        Rank(_Runner(execute), _Group(rank), control).serve()
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


def test_a_job_that_raises_is_answered_with_the_collectives_so_far() -> None:
    message = "ValueError: no such block"
    assert served(1, refuse) == [Failed(1, message, 12), Failed(2, message, 12)]


def test_a_rank_that_lost_its_device_ends() -> None:
    with pytest.raises(torch.AcceleratorError):
        served(0, lose_the_device)


def test_a_rank_gets_its_device_and_its_part_of_the_threads() -> None:
    spec = replace(fake_spec(), tp=2, num_threads=5, rank_devices=("cuda:4", "cuda:6"))
    assert [rank_spec(spec, rank).device for rank in (0, 1)] == ["cuda:4", "cuda:6"]
    assert rank_spec(spec, 1).num_threads == 2
    plain = replace(fake_spec(), tp=2, num_threads=1)
    assert (rank_spec(plain, 1).device, rank_spec(plain, 1).num_threads) == ("cpu", 1)
