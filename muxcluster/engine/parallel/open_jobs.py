"""Jobs that not all ranks have answered: their order on every rank, and the SMs that they hold."""

from collections import deque
from collections.abc import Iterable, Sequence

from muxcluster.channel.codec import Done, Failed
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.parallel.answers import Answers, OutOfStep

_EPSILON = 1e-6

Ended = tuple[Job, JobDone | JobFailed]


class WorkerJobs:
    """Open jobs of one worker, which every rank has in the order of launch."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._open: deque[Answers] = deque()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """In the order of launch."""
        return tuple(each.job for each in self._open)

    @property
    def share(self) -> float:
        """SMs that the worker's jobs hold: they run one after the other."""
        return max((each.job.share for each in self._open), default=0.0)

    @property
    def is_split(self) -> bool:
        """True if the oldest job failed on some ranks, and others may wait in a collective."""
        return bool(self._open) and self._open[0].is_split

    def add(self, job: Job) -> None:
        self._open.append(Answers(job, self._num_ranks))

    def take(self, rank: int, answer: Done | Failed) -> Sequence[Ended]:
        """Take a rank's answer to its oldest job; return the jobs that all have answered by now.

        Raises OutOfStep if the answer is to another job, and as `Answers.outcome`.
        """
        mine = next((each for each in self._open if not each.has(rank)), None)
        if mine is None:
            raise OutOfStep(f"rank {rank} answers without a job")
        mine.take(rank, answer)
        ended: list[Ended] = []
        while self._open and (outcome := self._open[0].outcome()) is not None:
            ended.append((self._open.popleft().job, outcome))
        return ended

    def clear(self) -> None:
        """Forget all jobs: the worker's processes are gone."""
        self._open.clear()


class UnitJobs:
    """Open jobs of all workers of a unit.

    Jobs of different workers may reach two ranks in different orders, so a job that waited on one
    rank for SMs that another job holds could wait for ever: that one may wait in a collective for
    its part on the other rank, which waits there for the first job's SMs. Therefore the shares of
    open jobs sum to at most 1, and no job ever waits for SMs.
    """

    def __init__(self, worker_ids: Iterable[int], num_ranks: int) -> None:
        self._of = {worker_id: WorkerJobs(num_ranks) for worker_id in worker_ids}

    @property
    def share(self) -> float:
        """SMs that open jobs hold, at most, on every rank."""
        return sum(each.share for each in self._of.values())

    def __bool__(self) -> bool:
        return any(each.jobs for each in self._of.values())

    @property
    def oldest(self) -> tuple[Job, ...]:
        """The job that each worker runs."""
        return tuple(each.jobs[0] for each in self._of.values() if each.jobs)

    def of(self, worker_id: int) -> WorkerJobs:
        return self._of[worker_id]

    def add(self, job: Job) -> None:
        """Record a job that is launched now on every rank; its SMs must be free."""
        self._of[job.worker_id].add(job)
        assert self.share <= 1.0 + _EPSILON, (
            f"job {job.job_id} at {job.share:g} would wait for SMs: {self.share:g} are held"
        )

    def worker_of(self, job_id: int) -> int | None:
        """Return the worker of an open job; None if no open job has the id."""
        for worker_id, each in self._of.items():
            if any(job.job_id == job_id for job in each.jobs):
                return worker_id
        return None
