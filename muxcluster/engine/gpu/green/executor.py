"""Partition `green`: workers are threads of the unit's process, shares are green contexts."""

import queue
from collections.abc import Callable, Sequence

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed, Outcome
from muxcluster.engine.gpu.context import ContextLost
from muxcluster.engine.gpu.green.parts import Parts, parts_for
from muxcluster.engine.gpu.green.threads import RungThreads
from muxcluster.engine.processes.rungs import RungPlan, rung_per_share
from muxcluster.engine.steps.runner import UnitRunner


class GreenExecutor:
    """Executor with one thread per worker, and one runner and green context per rung.

    Weights, pool and tables exist once. Jobs of different workers overlap. A CUDA error that breaks
    the context breaks the process: the unit fails, and its parent starts it again.
    """

    def __init__(self, spec: UnitSpec, make_parts: Callable[[UnitSpec], Parts] = parts_for) -> None:
        """make_parts: makes the parts of the device where rungs run. Starts nothing yet."""
        self._spec = spec
        self._make_parts = make_parts
        self._parts: Parts | None = None
        self._plan = RungPlan(rung_per_share(spec.workers))
        self._ended: queue.SimpleQueue[JobDone | JobFailed | SystemExit | None]
        self._ended = queue.SimpleQueue()
        self._threads = RungThreads(spec, self._plan)
        self.backends: tuple[ModelBackend, ...] = ()

    @property
    def is_recovering(self) -> bool:
        """Never: there is no process to lose."""
        return False

    def start(self) -> None:
        self._parts = self._make_parts(self._spec)
        parts = self._parts.open(self._plan.rungs)  # before the weights: it may be refused
        self.backends = self._threads.load(parts, lambda memory: UnitRunner(self._spec, memory))
        self._threads.start(self._ended.put)

    def launch(self, job: Job) -> None:
        self._threads.give(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        try:
            ended = [self._ended.get(timeout=timeout_s)]
            while not self._ended.empty():
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return []
        return [_outcome(each) for each in ended if each is not None]

    def restart(self) -> None:
        """Raises EngineFailure always: memory of this process cannot be lost alone."""
        raise EngineFailure("an executor of threads has no owner to restart")

    def wake(self) -> None:
        self._ended.put(None)

    def kill(self) -> None:
        """Nothing to end: there are no child processes."""

    def close(self) -> None:
        self._threads.close()
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def _outcome(told: JobDone | JobFailed | SystemExit) -> Outcome:
    """Return the outcome. Raises EngineFailure if the process's CUDA context is lost."""
    if isinstance(told, SystemExit):
        reason = told.reason if isinstance(told, ContextLost) else str(told)
        raise EngineFailure(f"the CUDA context is lost: {reason}") from told
    return told
