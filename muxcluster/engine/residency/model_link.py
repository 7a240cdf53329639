"""The unit's end of one model's owner and of its workers, from wake to park."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from muxcluster.channel.codec import decode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobFailed, Outcome
from muxcluster.engine.processes.child_process import check_ready
from muxcluster.engine.processes.liveness import Pulse
from muxcluster.engine.processes.owner_link import ForkStream
from muxcluster.engine.processes.rung_workers import RungWorkers, WorkerCare
from muxcluster.engine.processes.rungs import RungPlan


class LinkState(Enum):
    """What a model's owner does."""

    LOADING = "loading"
    STARTING = "starting"  # its workers are forked, and do not take jobs yet
    SERVING = "serving"
    ENDING = "ending"


class ModelLink:
    """A model's owner, a child of the pool owner, and its workers."""

    def __init__(
        self, spec: UnitSpec, model_id: int, plan: RungPlan, pool: ForkStream, care: WorkerCare
    ) -> None:
        """Request the process, which begins to load. model_id: the model's place in the unit.

        Raises as the calls of `ForkStream`.
        """
        self.model_id = model_id
        self._model = spec.models[model_id]
        self._care = care
        self._pool = pool
        self.state = LinkState.LOADING
        self.workers = RungWorkers(replace(spec, models=(self._model,)), plan, self, care)
        control, its_control = socket.socketpair()
        forks, its_forks = socket.socketpair()
        control.settimeout(care.patience.silence_s)  # it may be stopped in mid-frame
        self.control = FrameSocket(control)
        self._forks = ForkStream(forks, care.patience)
        with its_control, its_forks:
            try:
                self.pid = pool.child(model_id, [its_control, its_forks])
            except OSError:
                self.close()
                raise
        self._pulse = Pulse(self.pid)
        self._next_pulse_s = self._end_by_s = 0.0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def has_doubts(self) -> bool:
        """True while the owner or a worker that has served is silent or being replaced."""
        if self.state is not LinkState.SERVING:
            return False
        return self._pulse.is_doubtful or self.workers.has_doubts

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        """As `ForkStream.worker`."""
        return self._forks.worker(worker_id)

    def loaded(self) -> ModelBackend:
        """Take its answer, when there is one: how the model runs.

        Raises LoadError with its message, EngineFailure if it raised something else or died.
        """
        try:
            frame = self.control.recv()
        except OSError:
            frame = None
        if frame is None:
            raise EngineFailure(f"the owner of {self.name} died while it loaded")
        (backend,) = check_ready(decode(frame), self.name)
        return backend

    def start_workers(self) -> Sequence[Outcome]:
        """Request the workers of all rungs; returns nothing. Raises as `RungWorkers.start`."""
        self.state = LinkState.STARTING
        self._pulse.heard()
        self.workers.start()
        return ()

    def is_hung(self, now: float) -> bool:
        """Take the owner's pulse if it is time; return whether it has been silent for too long."""
        if self.state is LinkState.ENDING:
            return now > self._end_by_s
        is_loading = self.state is LinkState.LOADING
        if now >= self._next_pulse_s or not is_loading:
            self._pulse.beat(is_busy=is_loading)
            self._next_pulse_s = now + self._care.patience.load_beat_s
        return self._pulse.is_silent

    @property
    def has_missed(self) -> bool:
        """True if the owner showed no sign of life at its last pulse."""
        return self._pulse.has_missed

    def begin_end(self, end_by_s: float) -> None:
        """Let the owner end its workers and itself; its control stream ends when it is gone."""
        assert not self.workers.is_busy, f"{self.name} has jobs"
        self.state, self._end_by_s = LinkState.ENDING, end_by_s
        self.workers.drop()
        self._forks.close()

    def end(self) -> None:
        """Have the owner killed, if it lives, and reaped. Raises as the calls of `ForkStream`."""
        self._pool.end(self.model_id)

    def lose(self, cause: str) -> Sequence[JobFailed]:
        """Kill the workers, whose owner is lost, and wait for their end; return their jobs.

        Until then they may write to blocks of the pool.
        """
        self.workers.kill()
        return self.workers.lose(cause)

    def close(self) -> None:
        """Close all streams; idempotent."""
        self.workers.drop()
        self._forks.close()
        self.control.close()
