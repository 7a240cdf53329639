"""The unit's end of one rank: its process, its stream and its pulse."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from muxcluster.channel.codec import (
    Done,
    Failed,
    Launch,
    LoadFailed,
    Message,
    Ready,
    Start,
    decode,
    encode,
)
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.liveness import Patience, Pulse
from muxcluster.engine.ownerlink import ONE_THREAD
from muxcluster.engine.workerlink import GONE

RANK_MODULE = "muxcluster.engine.parallel.rank"


class RankLost(Exception):
    """The rank's process died, or is stuck in mid-frame; the message says which rank."""


class RankLink:
    """One rank's process from start to reaping; it leads a process group of its own.

    pulse: whether it works while it has a job. standing: whether it is not stopped, always.
    """

    def __init__(self, rank: int, meeting_point: Path, patience: Patience) -> None:
        self.rank = rank
        self._num_open = 0
        ours, theirs = socket.socketpair()
        # A rank that is stopped in mid-frame must not stop the unit too.
        ours.settimeout(patience.silence_s)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", RANK_MODULE, str(theirs.fileno()), str(rank), meeting_point],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control = FrameSocket(ours)
        self.pulse = Pulse(self._process.pid)
        self.standing = Pulse(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """Descriptor to select on: the rank has something to say, or is gone."""
        return self._control.fileno()

    @property
    def is_busy(self) -> bool:
        """True from a launch until its answer."""
        return self._num_open > 0

    def load(self, spec: UnitSpec) -> None:
        """Tell it what to load; `loaded` must follow. Raises RankLost."""
        self._send(Start(spec))

    def loaded(self, spec: UnitSpec) -> None:
        """Take its answer to `load`, when it has one.

        Raises LoadError with the rank's words, EngineFailure where it raised something else or
        died (its standard error is ours, so the reason can be read there).
        """
        try:
            message = self._receive()
        except RankLost:
            self.kill()
            status = self._process.wait()
            name = f"rank {self.rank} of {spec.unit_id}"
            raise EngineFailure(f"{name} died loading: exit {status}") from None
        if isinstance(message, LoadFailed):
            if message.path:
                raise LoadError(message.path, message.message)
            raise EngineFailure(f"{spec.unit_id} cannot start: {message.message}")
        assert isinstance(message, Ready), f"a rank sent {type(message).__name__}"

    def launch(self, job: Job) -> None:
        """Give it a job, which it runs after those it has. Raises RankLost."""
        self._num_open += 1
        self._send(Launch(job))

    def hear(self) -> Done | Failed:
        """What became of its oldest job. Raises RankLost."""
        message = self._receive()
        assert isinstance(message, Done | Failed), f"a rank sent {type(message).__name__}"
        self._num_open -= 1
        self.pulse.heard()
        return message

    def close(self) -> None:
        """Let it end itself, once it has no job."""
        self._control.close()

    def reap(self, grace_s: float) -> None:
        """Kill it after `grace_s` seconds, and wait for its end."""
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL; only `reap` does that, so the id cannot mean another process."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)

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
