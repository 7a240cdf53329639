"""Common part of the executors whose jobs run in child processes."""

import logging
import selectors
import time
from abc import ABC, abstractmethod
from typing import Any

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import OwnerLost
from muxcluster.engine.processes.job_limits import JobLimits
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.losses import LossLedger
from muxcluster.engine.processes.rung_workers import WorkerCare
from muxcluster.engine.processes.wake_pipe import WakePipe

logger = logging.getLogger(__name__)


class ChildExecutor(ABC):
    """Starts processes and ends them, all at a time; waits for their streams from beat to beat.

    Subclasses register a link to each process in `_selector`, as the entry's data.
    """

    def __init__(self, spec: UnitSpec, patience: Patience | None) -> None:
        self._spec = spec
        self._patience = patience or Patience()
        self._limits = JobLimits(self._patience.job_s)
        self._losses = LossLedger(spec.unit_id)
        self._next_beat_s = time.monotonic()
        self._is_doubtful = False
        self._selector = selectors.DefaultSelector()
        self._care = WorkerCare(self._selector, self._patience, self._limits, self._losses)
        self._wakes = WakePipe()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._is_killed = False
        self.backends = tuple(ModelBackend(model.name) for model in spec.models)
        self._is_closed = False

    @property
    def is_recovering(self) -> bool:
        return self._is_doubtful

    def start(self) -> None:
        try:
            self._make_processes()
        except BaseException:
            self._drop_processes()
            raise

    def restart(self) -> None:
        self._is_doubtful = True
        while True:
            self._losses.owner_lost(time.monotonic())
            try:
                self.start()
            except EngineFailure as error:
                if self._is_killed:
                    raise
                logger.warning("%s: %s", self._spec.unit_id, error)
            else:
                self._is_doubtful = False
                return

    def wake(self) -> None:
        self._wakes.wake()

    def kill(self) -> None:
        self._is_killed = True
        self._kill_processes()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._drop_processes()
        self._selector.close()
        self._wakes.close()

    @abstractmethod
    def _make_processes(self) -> None:
        """Load the models and make all workers.

        Raises as `Executor.start`; what was made until then is dropped.
        """

    @abstractmethod
    def _kill_processes(self) -> None:
        """Send SIGKILL to all, from any thread."""

    @abstractmethod
    def _drop_processes(self) -> None:
        """Close and unregister every stream, so that the processes end, and reap them.

        Idempotent, also if only some were made.
        """

    def _speaking(self, timeout_s: float | None) -> list[Any]:
        """Return links with a message; block until there is one, the next beat or a wake call."""
        until_beat_s = max(0.0, self._next_beat_s - time.monotonic())
        timeout_s = until_beat_s if timeout_s is None else min(timeout_s, until_beat_s)
        links = [key.data for key, _ in self._selector.select(timeout_s)]
        if None in links:
            self._wakes.drain()
        return [link for link in links if link is not None]

    def _is_beat_due(self) -> bool:
        """Return whether pulses are to be taken now, and set the next beat then."""
        now = time.monotonic()
        if now < self._next_beat_s:
            return False
        self._next_beat_s = now + self._patience.beat_s
        return True

    def _lose_all(self, message: str) -> OwnerLost:
        """End all processes: one was lost without which the others are useless."""
        logger.error(message)
        self._is_doubtful = True
        self._kill_processes()  # a worker deep in a job would notice late
        self._drop_processes()
        return OwnerLost(message)
