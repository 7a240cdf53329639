"""One worker of a unit over several ranks: a process on every rank, which run the same jobs."""

from collections.abc import Sequence

from muxcluster.channel.codec import Serving
from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.parallel.open_jobs import WorkerJobs
from muxcluster.engine.processes.worker_link import WorkerLink


class WorkerGroup:
    """The unit's end of a worker's processes, one a rank, from their fork to their replacement.

    They are replaced together: without one of them the others wait inside a collective.
    """

    def __init__(
        self, worker_id: int, links: Sequence[WorkerLink], jobs: WorkerJobs, silence_s: float
    ) -> None:
        """links: of the ranks in order. silence_s: time for the rest to fail, once some have."""
        self.worker_id = worker_id
        self.links = tuple(links)
        self._jobs = jobs
        self._silence_s = silence_s
        self._split_since_s: float | None = None

    @property
    def is_serving(self) -> bool:
        """True once all ranks take jobs."""
        return all(link.is_serving for link in self.links)

    @property
    def num_rows(self) -> int:
        """Rows of the job that its ranks run, 0 if they run none."""
        return max(link.num_rows for link in self.links)

    @property
    def is_doubtful(self) -> bool:
        """True if `check` will find it hung soon unless something changes."""
        working = [link.pulse.is_doubtful for link in self.links if link.is_working]
        idle = [link.pulse.is_doubtful for link in self.links if not link.is_working]
        return any(idle) or (bool(working) and all(working))

    @property
    def shows_work(self) -> bool:
        """True if it has no job, or some rank with a job showed a sign of life at the last beat."""
        busy = [link for link in self.links if link.is_busy]
        return not busy or any(not link.pulse.has_missed for link in busy)

    def launch(self, job: Job, now: float) -> None:
        """Give the job to every rank; `take` or `check`, not this, report a dead or hung one."""
        for link in self.links:
            link.launch(job, now)

    def take(self, rank: int, now: float) -> Sequence[JobDone | JobFailed] | None:
        """Take a rank's message; return the outcomes of jobs that all ranks have answered now.

        Returns None if the rank's process is dead or hangs inside a frame. Raises OutOfStep,
        MemoryDiffers.
        """
        heard = self.links[rank].receive(now)
        if heard is None:
            return None
        if isinstance(heard, Serving):
            return ()
        _, answer = heard
        ended = self._jobs.take(rank, answer)
        if not self._jobs.is_split:
            self._split_since_s = None
        elif self._split_since_s is None:
            self._split_since_s = now
        return [outcome for _, outcome in ended]

    def check(self, now: float) -> str | None:
        """Take every pulse; return why the group must be replaced, or None.

        A rank may wait long inside a collective, without using the processor, for one that works.
        """
        for link in self.links:
            link.beat()
        working = [link for link in self.links if link.is_working]
        if any(link.is_stuck for link in self.links):
            return "a rank's worker process hung"
        if any(link.pulse.is_silent for link in self.links if not link.is_working):
            return "a rank's worker process was stopped"
        if working and all(link.pulse.is_silent for link in working):
            return "no rank goes on with its job"
        if self._split_since_s is not None and now > self._split_since_s + self._silence_s:
            return "its job failed on some ranks only"
        return next((cause for link in self.links if (cause := link.overdue(now))), None)

    def lose(self, cause: str) -> Sequence[JobFailed]:
        """Return its jobs as failed: its processes are gone."""
        untaken = [
            {failed.job_id for failed in link.lose(cause) if not failed.has_started}
            for link in self.links
        ]
        failed = tuple(
            JobFailed(
                job.job_id,
                job.worker_id,
                cause,
                has_started=not all(job.job_id in some for some in untaken),
            )
            for job in self._jobs.jobs
        )
        self._jobs.clear()
        return failed
