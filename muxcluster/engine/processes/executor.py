"""Executor whose workers are child processes of a memory owner (design.md §4)."""

import logging
import math
import selectors
import time
from collections.abc import Sequence

from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Outcome, OwnerLost, StillRunning
from muxcluster.engine.processes.child_executor import ChildExecutor
from muxcluster.engine.processes.launcher import ForkLauncher, ProcessLauncher
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import OwnerLink
from muxcluster.engine.processes.rung_workers import RungWorkers
from muxcluster.engine.processes.worker_link import GONE

logger = logging.getLogger(__name__)

SETTLED_S = 10.0  # Seconds without a loss before a spare is made or checked, while no job runs.
# After this much longer it is made even while jobs run: its imports take a core some seconds.
MOST_PREPARING_S = 30.0


class ProcessExecutor(ChildExecutor):
    """Executor with one owner and one worker per rung: replaces lost workers, reports a lost owner.

    Lost means dead or hung: every process has a pulse, taken several times within
    `patience.silence_s`; a job has a time limit, and so has the owner when it is asked for a
    worker. A process that hangs is killed, and then treated like one that died.
    """

    def __init__(
        self,
        spec: UnitSpec,
        patience: Patience | None = None,
        launcher: ProcessLauncher | None = None,
    ) -> None:
        """launcher: starts the processes, by default forks on the CPU."""
        super().__init__(spec, patience)
        self._launcher = launcher or ForkLauncher()
        self._plan = self._launcher.plan(spec)
        self._owner: OwnerLink | None = None
        self._workers: RungWorkers | None = None
        self._prepare_s = math.inf

    @property
    def owner_pid(self) -> int:
        """Process id of the memory owner; its children are the workers."""
        assert self._owner is not None, "not started"
        return self._owner.pid

    def launch(self, job: Job) -> None:
        assert self._workers is not None, "not started"
        self._workers.launch(job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = self._speaking(timeout_s)
        if self._owner in ready:
            return [self._lose_owner("died")]
        outcomes: list[Outcome] = []
        try:
            for worker in ready:
                outcomes.extend(worker.hear())
            if self._is_beat_due():
                outcomes.extend(self._beat())
                self._prepare_in_time(time.monotonic())
            elif ready:  # some may have started, or are new
                self._is_doubtful = self._has_doubts()
        except TimeoutError:
            return [self._lose_owner("hung")]
        except GONE:  # no new worker for a dead one: the owner is dead too
            return [self._lose_owner("died")]
        return outcomes

    def _make_processes(self) -> None:
        started_s = time.monotonic()
        self._owner = self._launcher.owner(self._patience)
        self.backends = self._owner.load(self._spec)
        loaded_s = time.monotonic()
        self._selector.register(self._owner.control, selectors.EVENT_READ, self._owner)
        self._workers = RungWorkers(self._spec, self._plan, self._owner, self._care)
        try:
            self._workers.start()
        except (*GONE, TimeoutError) as error:
            message = f"the memory owner of {self._spec.unit_id} was lost before it made a worker"
            raise EngineFailure(message) from error
        now = time.monotonic()
        self._prepare_s = now + SETTLED_S
        logger.info(
            "%s: its processes are ready after %.1f s: %.1f s until the owner ran, %.1f s loading, "
            "%.1f s for the workers",
            self._spec.unit_id,
            now - started_s,
            loaded_s - started_s - self._owner.load_s,
            self._owner.load_s,
            now - loaded_s,
        )

    def prepare(self) -> None:
        """Let the launcher prepare for the next owner now."""
        self._launcher.prepare(self._patience)

    def _prepare_in_time(self, now: float) -> None:
        """Prepare when nothing runs, or in any case after a while."""
        is_busy = self._workers is not None and self._workers.is_busy
        if now > self._prepare_s + (MOST_PREPARING_S if is_busy else 0.0):
            self._prepare_s = now + SETTLED_S
            self.prepare()

    def close(self) -> None:
        super().close()
        self._launcher.close()

    def _kill_processes(self) -> None:
        owner = self._owner
        if owner is not None:
            owner.kill()

    def _has_doubts(self) -> bool:
        assert self._owner is not None and self._workers is not None, "not started"
        return self._owner.pulse.is_doubtful or self._workers.has_doubts

    def _beat(self) -> Sequence[Outcome]:
        """Take every pulse, replace workers that hang. Raises TimeoutError if the owner hangs."""
        assert self._owner is not None and self._workers is not None, "not started"
        self._owner.pulse.beat(is_busy=False)
        if self._owner.pulse.is_silent:
            raise TimeoutError
        outcomes = list(self._workers.beat())
        self._is_doubtful = self._has_doubts()
        if self._workers.is_working:
            outcomes.append(StillRunning())
        return outcomes

    def _lose_owner(self, how: str) -> OwnerLost:
        return self._lose_all(f"the memory owner of {self._spec.unit_id} {how}")

    def _drop_processes(self) -> None:
        if self._workers is not None:
            self._workers.drop()
            self._workers = None
        if self._owner is not None:
            if self._owner.control in self._selector.get_map():
                self._selector.unregister(self._owner.control)
            self._owner.stop()
            self._owner = None
        self._launcher.release()
