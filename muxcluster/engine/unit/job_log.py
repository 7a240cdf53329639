"""Log of jobs for timelines and metrics: what is running, and the last few thousand ended."""

from collections import deque

from muxcluster.core.job import Job, JobResult
from muxcluster.core.served import JobRecord

MAX_RECORDS = 4096


class JobLog:
    """Running jobs by id, and records of ended ones that nobody has taken yet.

    The oldest records are dropped if nobody takes them.
    """

    def __init__(self) -> None:
        self._running: dict[int, tuple[Job, float]] = {}
        self._last_end_s: dict[int, float] = {}
        self._records: deque[JobRecord] = deque(maxlen=MAX_RECORDS)

    def start(self, job: Job, now: float) -> None:
        """Record that the job was launched at `now` (seconds on the unit's clock).

        A job that follows another starts when that ends.
        """
        self._running[job.job_id] = (job, now)

    def finish(self, result: JobResult, now: float) -> Job:
        """Record that the job succeeded at `now`. Raises KeyError if it never started."""
        job, start = self._running.pop(result.job_id)
        if job.follows is not None:
            start = max(start, self._last_end_s[job.worker_id])
        self._last_end_s[job.worker_id] = now
        record = JobRecord(
            job_id=job.job_id,
            model=job.model,
            phase=job.phase.value,
            worker_id=job.worker_id,
            share=job.share,
            start_s=start,
            end_s=now,
            num_rows=len(job.rows),
            num_tokens=max(int(job.rows.counts.sum()), len(result.tokens)),
        )
        self._records.append(record)
        return job

    def fail(self, job_id: int) -> Job:
        """Remove a failed job, without a record. Raises KeyError if it never started."""
        return self._running.pop(job_id)[0]

    def forget_running(self) -> None:
        """Remove every running job: all are lost."""
        self._running.clear()

    def take(self) -> tuple[JobRecord, ...]:
        """Return records since the last call, oldest first."""
        records = tuple(self._records)
        self._records.clear()
        return records
