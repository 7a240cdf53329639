"""Child processes of an engine as forks of one that has imported torch and transformers.

They start at once. What a child runs, its arguments, sockets, environment and folder are those of
`ChildProcess`; tests/engine/processes and tests/engine/gpu start them as an engine does.
"""

import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from muxcluster.engine.processes import child_process
from muxcluster.engine.processes.owner_link import ONE_THREAD
from tests.conftest import ROOT

ANSWER_BYTES = 1024


class Preloaded:
    """The process that forks; stands for `subprocess` where an engine starts its children."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._stream, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            command = (sys.executable, "-m", "tests.engine.children.program", f"{theirs.fileno()}")
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def Popen(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        env: Mapping[str, str] | None,
        pass_fds: Sequence[int],
        process_group: int,
    ) -> "Forked":
        """Fork a child that runs `python -m MODULE ARGUMENTS`."""
        assert command[:2] == [sys.executable, "-m"]
        assert (stdin, stdout, process_group) == (subprocess.DEVNULL, subprocess.DEVNULL, 0)
        environment = dict(os.environ if env is None else env)
        request = ("fork", command[2:], environment, os.getcwd(), tuple(pass_fds))
        return Forked(self, self.ask(request, (2, *pass_fds)))

    def ask(self, request: tuple[Any, ...], descriptors: Sequence[int] = ()) -> Any:
        """Return the answer of the process."""
        with self._lock:
            socket.send_fds(self._stream, [pickle.dumps(request)], list(descriptors))
            return pickle.loads(self._stream.recv(ANSWER_BYTES))

    def close(self) -> None:
        self._stream.close()
        self._process.wait()


class Forked:
    """A child, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, preloaded: Preloaded, pid: int) -> None:
        self._preloaded = preloaded
        self.pid = pid
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._preloaded.ask(("poll", self.pid))
            if self.returncode is not None:
                os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"{self.pid}", timeout or 0.0)
            self.poll()
        assert self.returncode is not None
        return self.returncode


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded | None]:
    """None where the system cannot wait for processes that are not its children."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    process = Preloaded()
    yield process
    process.close()


@pytest.fixture(scope="module")
def fast_children(preloaded: Preloaded | None) -> Iterator[None]:
    """Engines of this module's tests fork their children from the preloaded process."""
    with pytest.MonkeyPatch.context() as patch:
        if preloaded is not None:
            patch.setattr(child_process, "subprocess", preloaded)
        yield
