"""A child process of the unit: its start, its answer to Start, its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from muxcluster.channel.codec import LoadFailed, Message, Ready
from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.engine.processes.liveness import Pulse

STOP_GRACE_S = 5.0  # for processes that end by themselves, from the end of their streams on


class ChildProcess:
    """A process from start to reaping.

    It leads a process group of its own, which its children share: one signal ends them all. It has
    our session: Linux divides the processors between sessions first, and priorities hold within one
    (constraints/process/priority.py).
    """

    def __init__(
        self,
        module: str,
        streams: Sequence[socket.socket],
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run `python -m module`, with the descriptors of `streams` before other arguments.

        streams: the child's ends, closed here. environment: the whole environment; None: ours.
        """
        inherited = tuple(stream.fileno() for stream in streams)
        with ExitStack() as ends:
            for stream in streams:
                ends.enter_context(stream)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, inherited), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=inherited,
                process_group=0,
            )
        self.pulse = Pulse(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id, and id of its process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def reap(self, grace_s: float) -> int:
        """Kill the group after `grace_s` seconds, and wait for its end; return the exit status."""
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to the group; only `reap` reaps, so the id cannot mean another group."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def check_ready(message: Message, unit_id: str) -> tuple[ModelBackend, ...]:
    """Return a child's answer to Start: how its models run.

    Raises LoadError with its message, EngineFailure if it raised something else.
    """
    if isinstance(message, LoadFailed):
        if message.path:
            raise LoadError(message.path, message.message)
        raise EngineFailure(f"{unit_id} cannot start: {message.message}")
    assert isinstance(message, Ready), f"a process that loads sent {type(message).__name__}"
    return message.backends
