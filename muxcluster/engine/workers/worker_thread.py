"""A worker as a thread of the unit's process: takes jobs from a queue, runs them in order."""

import queue
import threading
from collections.abc import Callable

from muxcluster.core.job import Job
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.workers.pipeline import IDLE_S, JobRunner, Pipeline

# pause between two polls of device and queue while the device works and no job follows yet
_NAP_S = 5e-5


class WorkerThread:
    """Runs jobs from `start` to `close`; reports their outcomes on its own thread."""

    def __init__(
        self,
        name: str,
        runner: JobRunner,
        report: Callable[[JobDone | JobFailed | SystemExit], None],
    ) -> None:
        """report: called with every outcome, or a job's SystemExit, which ends the thread."""
        self._pipeline = Pipeline(runner)
        self._report = report
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_closing = False
        self._may_record = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def give(self, job: Job) -> None:
        """Add a job; it runs after those given before."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait for jobs that have begun; drop the rest."""
        self._is_closing = True
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
            while len(self._pipeline):
                self._pipeline.end()
        except SystemExit as end:
            self._report(end)

    def _turn(self) -> None:
        if self._pipeline.must_end:
            self._report(self._pipeline.end())
            return
        is_idle = not len(self._pipeline)
        wait_s = _NAP_S if not is_idle else IDLE_S if self._may_record else None
        try:
            job = self._jobs.get(timeout=wait_s)
        except queue.Empty:
            if is_idle:
                self._may_record = self._pipeline.record_next()
            return
        if job is not None:
            self._pipeline.begin(job)
            self._may_record = True
