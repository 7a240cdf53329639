"""Combines the ranks' answers to a job into one outcome."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muxcluster.channel.codec import Done, Failed
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed


class OutOfStep(Exception):
    """Ranks of a worker differ in their place in the collectives; the message says how."""


class MemoryDiffers(Exception):
    """Ranks differ for good in what they hold; the message says how."""


def answer_of(outcome: JobDone | JobFailed, rank: int, num_collectives: int) -> Done | Failed:
    """Return what a rank tells the unit of a job; it hears logprobs and vectors from rank 0 alone.

    num_collectives: how often the rank has met the worker's others so far.
    """
    if isinstance(outcome, JobFailed):
        return Failed(outcome.job_id, outcome.message, num_collectives)
    result = outcome.result
    told = replace(result, logprobs={}, prompt_logprobs={}, vectors={}) if rank else result
    return Done(told)


class Answers:
    """What `num_ranks` ranks have answered to one job."""

    def __init__(self, job: Job, num_ranks: int) -> None:
        self.job = job
        self._num_ranks = num_ranks
        self._said: dict[int, Done | Failed] = {}

    @property
    def is_split(self) -> bool:
        """True if some ranks failed and others did not answer: they may wait in a collective."""
        has_failed = any(isinstance(answer, Failed) for answer in self._said.values())
        return has_failed and len(self._said) < self._num_ranks

    def has(self, rank: int) -> bool:
        return rank in self._said

    def take(self, rank: int, answer: Done | Failed) -> None:
        """Record a rank's answer. Raises OutOfStep if it is to another job, or its second."""
        job_id = answer.result.job_id if isinstance(answer, Done) else answer.job_id
        if job_id != self.job.job_id or rank in self._said:
            raise OutOfStep(f"rank {rank} answers for job {job_id} out of turn")
        self._said[rank] = answer

    def outcome(self) -> JobDone | JobFailed | None:
        """Return the job's outcome; None while some rank has not answered.

        Raises OutOfStep, MemoryDiffers.
        """
        if len(self._said) < self._num_ranks:
            return None
        return _outcome(self.job, [self._said[rank] for rank in range(self._num_ranks)])


def _outcome(job: Job, answers: Sequence[Done | Failed]) -> JobDone | JobFailed:
    results = [answer.result for answer in answers if isinstance(answer, Done)]
    failures = [answer for answer in answers if isinstance(answer, Failed)]
    if not failures:
        first, *others = results
        if any(not np.array_equal(first.tokens, other.tokens) for other in others):
            raise MemoryDiffers(f"ranks sampled different tokens in job {job.job_id}")
        return JobDone(first)
    if results or len({failure.num_collectives for failure in failures}) > 1:
        raise OutOfStep(f"job {job.job_id} failed on some ranks only: {failures[0].message}")
    return JobFailed(job.job_id, job.worker_id, failures[0].message)
