"""The unit's end of one rank: its process, its stream and its pulse."""

import os
import socket
from pathlib import Path

from muxcluster.channel.codec import Done, Failed, Launch, Message, Start, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.child_process import STOP_GRACE_S, ChildProcess, check_ready
from muxcluster.engine.processes.liveness import Patience, Pulse
from muxcluster.engine.processes.owner_link import ONE_THREAD
from muxcluster.engine.processes.worker_link import GONE

RANK_MODULE = "muxcluster.engine.parallel.rank"


class RankLost(Exception):
    """The rank's process died, or hangs inside a frame; the message says which rank."""


class RankLink(ChildProcess):
    """The unit's end of one rank's process.

    pulse: whether it works while it has a job. standing: whether it is not stopped, always.
    """

    def __init__(self, rank: int, meeting_point: Path, patience: Patience) -> None:
        self.rank = rank
        self._num_open = 0
        ours, theirs = socket.socketpair()
        # A rank that is stopped in mid-frame must not stop the unit too.
        ours.settimeout(patience.silence_s)
        super().__init__(
            RANK_MODULE, (theirs,), (str(rank), str(meeting_point)), {**os.environ, **ONE_THREAD}
        )
        self._control = FrameSocket(ours)
        self.standing = Pulse(self.pid)

    def fileno(self) -> int:
        """Descriptor to select on: readable if the rank has a message or is gone."""
        return self._control.fileno()

    @property
    def is_busy(self) -> bool:
        """True from a launch until its answer."""
        return self._num_open > 0

    def load(self, spec: UnitSpec) -> None:
        """Send it what to load; `loaded` must follow. Raises RankLost."""
        self._send(Start(spec))

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        """Take its answer to `load`, when it has one: how its models run.

        Raises LoadError with the rank's message, EngineFailure if it raised something else or died
        (its standard error is ours, so the reason can be read there).
        """
        try:
            message = self._receive()
        except RankLost:
            status = self.reap(STOP_GRACE_S)
            name = f"rank {self.rank} of {spec.unit_id}"
            raise EngineFailure(f"{name} died loading: exit {status}") from None
        return check_ready(message, spec.unit_id)

    def launch(self, job: Job) -> None:
        """Give it a job, which it runs after those it has. Raises RankLost."""
        self._num_open += 1
        self._send(Launch(job))

    def hear(self) -> Done | Failed:
        """Return the outcome of its oldest job. Raises RankLost."""
        message = self._receive()
        assert isinstance(message, Done | Failed), f"a rank sent {type(message).__name__}"
        self._num_open -= 1
        self.pulse.heard()
        return message

    def close(self) -> None:
        """Let it end by itself, once it has no job."""
        self._control.close()

    def _send(self, message: Message) -> None:
        try:
            self._control.send(encode(message))
        except (*GONE, TimeoutError) as error:
            raise self._loss(error) from error

    def _receive(self) -> Message:
        try:
            frame = self._control.recv()
        except (*GONE, TimeoutError) as error:
            raise self._loss(error) from error
        if frame is None:
            raise self._loss(None)
        return decode(frame)

    def _loss(self, error: OSError | None) -> RankLost:
        how = "hung" if isinstance(error, TimeoutError) else "died"
        return RankLost(f"rank {self.rank} {how}")
