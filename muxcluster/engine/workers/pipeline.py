"""The jobs that one worker has begun: a device has the next job before the last has ended."""

import logging
import time
from collections import deque
from dataclasses import replace
from typing import Protocol

from muxcluster.core.job import Job, JobResult
from muxcluster.engine.executor import JobDone, JobFailed

logger = logging.getLogger(__name__)

IDLE_S = 0.05  # a worker without a job for this long records steps

_MOST = 2  # jobs begun at a time: the device runs one, and has the next when that ends

REFUSED = "the job that it follows failed"


class Launched(Protocol):
    """A job that was given to the device: see `pending_job.PendingJob`."""

    @property
    def is_done(self) -> bool:
        """True where `result` need not wait."""
        ...

    def result(self) -> JobResult:
        """Wait for the job's end. Raises what the job raised."""
        ...


class JobRunner(Protocol):
    """Runs a worker's jobs: see `runner.UnitRunner`."""

    def launch(self, job: Job) -> Launched:
        """Begin the job, after those that were launched before. May raise what the job raises."""
        ...

    def waits(self, job: Job) -> bool:
        """True if `launch` returns only when the job has ended: the host takes part in it."""
        ...

    def record_next(self) -> bool:
        """Prepare something that jobs have wanted, for some tenths of a second.

        Returns whether there was any. Called on the thread of `launch`, when no job is open.
        """
        ...


class _Later:
    """A job that is launched when the jobs before it have been reported."""

    # Launching it earlier would delay their tokens.

    is_done = True

    def __init__(self, runner: JobRunner, job: Job) -> None:
        self._runner = runner
        self._job = job

    def result(self) -> JobResult:
        return self._runner.launch(self._job).result()


class Pipeline:
    """Begins jobs in order of arrival, and ends them in that order.

    A job that follows one that failed is not run. If it has begun before the failure shows, its end
    is awaited before the failure is reported.
    """

    # Its history, and whatever the failed job was to write, may be anything. Blocks may change
    # hands after the report.

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._open: deque[tuple[Job, Launched | JobFailed]] = deque()
        self._sound: dict[int, int] = {}
        self._last_end_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def must_end(self) -> bool:
        """True if the oldest job should be ended before another is begun."""
        if not self._open:
            return False
        _, oldest = self._open[0]
        return len(self._open) >= _MOST or isinstance(oldest, JobFailed) or oldest.is_done

    def begin(self, job: Job) -> None:
        """Give `job` to the device; `end` reports a failure of that."""
        if job.follows is not None and self._sound.get(job.worker_id) != job.follows:
            self._open.append((job, JobFailed(job.job_id, job.worker_id, REFUSED)))
            self._sound.pop(job.worker_id, None)
            return
        try:
            later = bool(self._open) and self._runner.waits(job)
            launched = _Later(self._runner, job) if later else self._runner.launch(job)
            self._open.append((job, launched))
            self._sound[job.worker_id] = job.job_id
        except Exception as error:
            logger.exception("job %d of %s failed", job.job_id, job.model)
            self._open.append((job, self._failed(job, error)))

    def end(self) -> JobDone | JobFailed:
        """Wait for the oldest job, and return its outcome."""
        job, launched = self._open.popleft()
        if isinstance(launched, JobFailed):
            return launched
        try:
            result = launched.result()
        except Exception as error:
            logger.exception("job %d of %s failed", job.job_id, job.model)
            self._discard_follower(job)
            return self._failed(job, error)
        now = time.monotonic()
        if now - result.seconds < self._last_end_s:  # launched before the last one's end
            result = replace(result, seconds=now - self._last_end_s)
        self._last_end_s = now
        return JobDone(result)

    def record_next(self) -> bool:
        """As `JobRunner.record_next`; if that fails, jobs run without."""
        try:
            return self._runner.record_next()
        except Exception:
            logger.exception("what jobs wanted could not be recorded")
            return False

    def _failed(self, job: Job, error: Exception) -> JobFailed:
        self._sound.pop(job.worker_id, None)
        return JobFailed(job.job_id, job.worker_id, f"{type(error).__name__}: {error}")

    def _discard_follower(self, job: Job) -> None:
        for place, (other, launched) in enumerate(self._open):
            if other.follows == job.job_id and not isinstance(launched, JobFailed):
                try:
                    if not isinstance(launched, _Later):
                        launched.result()
                except Exception:
                    logger.exception("job %d, which nobody waits for, failed too", other.job_id)
                refused = JobFailed(other.job_id, other.worker_id, REFUSED)
                self._open[place] = other, refused
