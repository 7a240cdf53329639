"""Workers as a fiction: every job runs in this process, inside `wait` (no sockets, no Ray)."""

import logging
import threading
from collections import deque
from collections.abc import Sequence

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.runner import UnitRunner

logger = logging.getLogger(__name__)


class InProcessExecutor:
    """Runs one launched job per `wait`, in the order of launching."""

    def __init__(self, spec: UnitSpec) -> None:
        self._spec = spec
        self._runner: UnitRunner | None = None
        self._jobs: deque[Job] = deque()
        self._woken = threading.Event()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        self._runner = UnitRunner(self._spec)
        self._runner.record(self._spec.workers[0].worker_id)

    def launch(self, job: Job) -> None:
        self._jobs.append(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        if self._jobs:
            return [self._run(self._jobs.popleft())]
        self._woken.wait(timeout_s)
        self._woken.clear()
        return []

    def restart(self) -> None:
        """Raises EngineFailure always: memory of this process cannot be lost alone."""
        raise EngineFailure("an in-process executor has no owner to restart")

    def wake(self) -> None:
        self._woken.set()

    def kill(self) -> None:
        """Nothing to end: there are no child processes."""

    def close(self) -> None:
        self._runner = None
        self._jobs.clear()

    def _run(self, job: Job) -> Outcome:
        assert self._runner is not None, "wait before start"
        try:
            return JobDone(self._runner.execute(job))
        except Exception as error:
            logger.exception("job %d of %s failed", job.job_id, job.model)
            return JobFailed(job.job_id, job.worker_id, f"{type(error).__name__}: {error}")
