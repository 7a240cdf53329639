"""Executor without worker processes: every job runs in this process, inside `wait`."""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Outcome
from muxcluster.engine.gpu.context import open_own_context
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.pipeline import IDLE_S, Pipeline


class InProcessExecutor:
    """Ends one launched job per `wait`, in the order of launching.

    On a GPU the next job has begun by then.
    """

    def __init__(self, spec: UnitSpec) -> None:
        self._spec = spec
        self._pipeline: Pipeline | None = None
        self._jobs: deque[Job] = deque()
        self._woken = threading.Event()
        self._may_record = False
        self._last_end_s = 0.0
        self.backends: tuple[ModelBackend, ...] = ()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        open_own_context(torch.device(self._spec.device), os.environ)
        runner = UnitRunner(self._spec)
        worker_id = self._spec.workers[0].worker_id
        runner.warm_up(worker_id)
        runner.record(worker_id)
        self.backends = runner.backends
        self._pipeline = Pipeline(runner)

    def launch(self, job: Job) -> None:
        self._jobs.append(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        pipeline = self._pipeline
        assert pipeline is not None, "wait before start"
        while self._jobs and not pipeline.must_end:
            pipeline.begin(self._jobs.popleft())
        if len(pipeline):
            outcome = pipeline.end()
            self._may_record, self._last_end_s = True, time.monotonic()
            return [outcome]
        if self._may_record and (timeout_s is None or timeout_s > IDLE_S):
            timeout_s = IDLE_S
        is_woken = self._woken.wait(timeout_s)
        self._woken.clear()
        if not is_woken and self._may_record and time.monotonic() - self._last_end_s >= IDLE_S:
            self._may_record = pipeline.record_next()
        return []

    def restart(self) -> None:
        """Always raises EngineFailure: memory of this process cannot be lost alone."""
        raise EngineFailure("an in-process executor has no owner to restart")

    def wake(self) -> None:
        self._woken.set()

    def kill(self) -> None:
        """Do nothing: there are no child processes."""

    def close(self) -> None:
        self._pipeline = None
        self._jobs.clear()
