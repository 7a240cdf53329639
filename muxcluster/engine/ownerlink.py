"""The unit's end of its memory owner: start the process, ask it for workers, end it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from muxcluster.channel.codec import LoadFailed, Ready, Start, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.unitspec import UnitSpec

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
"""The owner forks, so no library may start a thread in it; workers raise the count per job.

PASSIVE: idle threads of one worker must not spin on the cores of another.
"""


class OwnerLink:
    """One owner process, from start to reaping.

    control: a stream whose EOF means the other side is gone; it carries Start, then Ready or
    LoadFailed. forks: a stream of worker ids, each with the worker's socket attached.
    The owner leads its own process group, which its workers share: one signal ends them all.
    """

    def __init__(self) -> None:
        unit_control, owner_control = socket.socketpair()
        self._forks, owner_forks = socket.socketpair()
        inherited = (owner_control.fileno(), owner_forks.fileno())
        with owner_control, owner_forks:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "muxcluster.engine.owner", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(os.environ),
                pass_fds=inherited,
                start_new_session=True,
            )
        self.control = FrameSocket(unit_control)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group of the owner and its workers."""
        return self._process.pid

    def load(self, spec: UnitSpec) -> None:
        """Tell the owner what to load and block until it has.

        Raises LoadError with the owner's words, EngineFailure where it raised something else or
        died (its standard error is ours, so the reason can be read there).
        """
        try:
            self.control.send(encode(Start(spec)))
            frame = self.control.recv()
        except OSError:
            frame = None
        if frame is None:
            status = self._process.wait()
            raise EngineFailure(f"the memory owner of {spec.unit_id} died loading: exit {status}")
        message = decode(frame)
        if isinstance(message, LoadFailed):
            if message.path:
                raise LoadError(message.path, message.message)
            raise EngineFailure(f"{spec.unit_id} cannot start: {message.message}")
        assert isinstance(message, Ready), f"the owner sent {type(message).__name__}"

    def fork(self, worker_id: int) -> FrameSocket:
        """Ask for a (new) worker process; the stream to it. An earlier one is killed first.

        The stream reads EOF where the owner dies before it forks. Raises OSError where the owner
        is known to be dead.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                request = worker_id.to_bytes(4, "little")
                socket.send_fds(self._forks, [request], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return FrameSocket(ours)

    def stop(self, grace_s: float) -> None:
        """Let the owner end its workers and itself; kill the group after `grace_s` seconds."""
        self.control.close()
        self._forks.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL to owner and workers; only `stop` reaps, so the id cannot mean another group."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    return {**inherited, **ONE_THREAD}
