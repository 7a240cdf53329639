"""One outcome of a job from what every rank says about it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from muxcluster.channel.codec import Done, Failed
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed


class OutOfStep(Exception):
    """Ranks say different things: their memory or their place in the collectives differs for good.

    The message says what.
    """


@dataclass(slots=True)
class _OpenJob:
    job: Job
    answers: dict[int, Done | Failed] = field(default_factory=dict)


class Answers:
    """The running jobs of `num_ranks` ranks, oldest first, and what has been said of them."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._open: deque[_OpenJob] = deque()

    @property
    def oldest(self) -> Job | None:
        """The job that the ranks work on, or have not begun; None: nothing runs."""
        return self._open[0].job if self._open else None

    @property
    def is_split(self) -> bool:
        """True where some rank has failed at the oldest job while others have not answered: they
        may be waiting for it inside a collective."""
        if not self._open:
            return False
        return any(isinstance(answer, Failed) for answer in self._open[0].answers.values())

    def launched(self, job: Job) -> None:
        """Every rank was given the job, after those before it."""
        self._open.append(_OpenJob(job))

    def take(self, rank: int, answer: Done | Failed) -> None:
        """A rank's answer to the oldest job that it has not answered. Raises OutOfStep."""
        job_id = answer.result.job_id if isinstance(answer, Done) else answer.job_id
        mine = next((each for each in self._open if rank not in each.answers), None)
        if mine is None or mine.job.job_id != job_id:
            raise OutOfStep(f"rank {rank} answers for job {job_id} out of turn")
        mine.answers[rank] = answer

    def ended(self) -> list[JobDone | JobFailed]:
        """Outcomes of jobs that all ranks have answered, oldest first. Raises OutOfStep."""
        outcomes = []
        while self._open and len(self._open[0].answers) == self._num_ranks:
            ended = self._open.popleft()
            outcomes.append(_outcome(ended.job, [ended.answers[r] for r in range(self._num_ranks)]))
        return outcomes


def _outcome(job: Job, answers: Sequence[Done | Failed]) -> JobDone | JobFailed:
    results = [answer.result for answer in answers if isinstance(answer, Done)]
    failures = [answer for answer in answers if isinstance(answer, Failed)]
    if not failures:
        first, *others = results
        if any(not np.array_equal(first.tokens, other.tokens) for other in others):
            raise OutOfStep(f"ranks sampled different tokens in job {job.job_id}")
        return JobDone(first)
    if results or len({failure.num_collectives for failure in failures}) > 1:
        raise OutOfStep(f"job {job.job_id} failed on some ranks only: {failures[0].message}")
    return JobFailed(job.job_id, job.worker_id, failures[0].message)
