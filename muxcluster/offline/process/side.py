"""A process at one's side: seconds of work without holding up an event loop."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from muxcluster.core.errors import EngineFailure

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger(__name__)

_WORKER = "muxcluster.offline.process.worker"
_MOST_TRIES = 3  # of work whose process was killed


class SideProcess:
    """Runs functions in one child process, one at a time; a killed process is replaced.

    The child ends with this process, whatever ends it, or with `close`. Functions and their
    arguments are pickled: both ends run the same code of ours.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Return the child's process id; None before the first work."""
        return None if self._child is None else self._child.pid

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `work(*args, **kwargs)`. Raises what it raises, EngineFailure if the process dies
        again and again."""
        return await asyncio.to_thread(self._run, work, args, kwargs)

    def open(self) -> None:
        """Start the process, so that later work does not wait for that.

        It gets ready by itself; if it does not start, the first work says so.
        """
        with self._lock:
            if self._is_closed:
                return
            try:
                self._opened()
            except (OSError, EOFError):
                self._end()

    def call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `run`, for a thread that may wait."""
        return self._run(work, args, kwargs)

    def _run(self, work: Callable[..., R], args: Any, kwargs: Any) -> R:
        with self._lock:
            for _ in range(_MOST_TRIES):
                if self._is_closed:
                    break
                try:
                    line = self._opened()
                    line.send((work, args, kwargs))
                    is_error, result = line.recv()
                except (OSError, EOFError):
                    self._end()
                    if not self._is_closed:
                        logger.warning("the process at our side died and starts again")
                    continue
                if is_error:
                    raise result
                found: R = result
                return found
        raise EngineFailure(
            "the process for this work does not start, dies again and again, or is closed"
        )

    def _opened(self) -> Connection:
        if self._line is None:
            ours, theirs = socket.socketpair()
            with theirs:
                paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", _WORKER],
                    stdin=theirs.fileno(),
                    env={**os.environ, "PYTHONPATH": paths},
                    # Ctrl-C in a terminal is for the command, which then ends its processes; in a
                    # session of its own, its priority would be void
                    process_group=0,
                )
            self._line = Connection(ours.detach())
            if self._is_closed:  # `close` came amid the start, and found no child to kill
                raise EOFError
        return self._line

    def close(self) -> None:
        """End the child; work under way raises EngineFailure. Idempotent, from any thread."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        line, self._line = self._line, None
        child, self._child = self._child, None
        if line is not None:
            line.close()
        if child is not None:
            child.kill()
            child.wait()
