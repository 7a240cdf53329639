"""A device for tests: jobs begin when they are launched and end when the test says so."""

import queue
import threading

from muxcluster.core.backends import ModelBackend
from muxcluster.core.job import Job, JobResult


class Blocked:
    """Its result is not there until the test says so."""

    def __init__(self, ended: JobResult) -> None:
        self.ended = ended
        self.may_end = threading.Event()

    @property
    def is_done(self) -> bool:
        return self.may_end.is_set()

    def result(self) -> JobResult:
        assert self.may_end.wait(20.0)
        return self.ended


class BlockedRunner:
    """Says which jobs it has begun; they end when the test says so.

    num_idle: how often it was asked to record something, of num_wanted.
    """

    def __init__(self) -> None:
        self.num_idle, self.num_wanted = 0, 0
        self.begun: queue.SimpleQueue[Blocked] = queue.SimpleQueue()
        self.backends: tuple[ModelBackend, ...] = ()

    def waits(self, job: Job) -> bool:
        return False

    def launch(self, job: Job) -> Blocked:
        rows = job.rows
        blocked = Blocked(JobResult(job.job_id, rows.table_rows, rows.counts, 0.0, {}, {}))
        self.begun.put(blocked)
        return blocked

    def record_next(self) -> bool:
        self.num_idle += 1
        return self.num_idle < self.num_wanted
