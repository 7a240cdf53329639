"""The unit's end of the mask process: starts it, checks grammars, replaces it when it dies."""

import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from pathlib import Path

from muxcluster.constraints.process.frames import receive, send
from muxcluster.constraints.rows import MaskModel
from muxcluster.core.errors import EngineFailure
from muxcluster.core.sampling import Constraint

_KEEPER = "muxcluster.constraints.process.keeper"
# Of our environment: it handles what strangers send, and needs no secrets.
_KEPT_VARIABLES = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TMPDIR", "TZ")
# Libraries that would start threads before the process forks.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_MOST_TRIES = 3  # of a check whose process died, and of a start
_BACKLOG = 128  # connections that wait while the process starts
_LONGEST_PATH = 90  # of a socket; the system takes 107 bytes
_END_S = 5.0
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Check:
    model: str
    grammar: str
    verdict: "Future[str | None]" = field(default_factory=Future)
    num_tries: int = 0


@dataclass(slots=True)
class _Child:
    """One process, and our end of the socket between."""

    process: "subprocess.Popen[bytes]"
    control: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_ready: bool = False


class MaskProcess:
    """The mask process of a unit, for any thread; it starts with the first `check`.

    It ends with `close`, or with this process, whatever ends that. address: for `MaskClient`; it
    stays the same when the process is replaced.
    """

    def __init__(self, models: Sequence[MaskModel]) -> None:
        self._models = tuple(models)
        self._folder = _private_folder()
        self.address = str(self._folder / "masks")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._checks: dict[int, _Check] = {}
        self._numbers = itertools.count()
        self._num_failed_starts = 0
        self._is_closed = False
        self.num_restarts = 0  # of the process or of its server, after they died

    @property
    def pid(self) -> int | None:
        """Return the process's id, which is that of its process group; None if none runs."""
        child = self._child
        return None if child is None else child.process.pid

    def check(self, model: str, constraint: Constraint) -> str | None:
        """Return what is wrong with the constraint's grammar; None if the model can follow it.

        Compiles it, so that its first mask comes without delay. Waits on this thread. Raises
        EngineFailure if the process does not stay alive.
        """
        check = _Check(model, constraint.grammar)
        with self._lock:
            if self._is_closed:
                raise EngineFailure("the unit has ended")
            self._num_failed_starts = 0
            number = next(self._numbers)
            self._checks[number] = check
            child = self._child or self._start()
        self._send(child, number, check)
        found = check.verdict.result()
        return found if found is not None else self._prepare(check)

    def close(self) -> None:
        """End the process; checks that wait raise EngineFailure. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            child = self._child
        self._listener.close()
        if child is not None:
            _end(child)
        self._fail_checks("the unit has ended")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self, check: _Check) -> str | None:
        """Let the server compile the grammar before the request's first step asks for a mask."""
        for _ in range(_MOST_TRIES):
            with contextlib.suppress(OSError, EOFError), socket.socket(socket.AF_UNIX) as stream:
                stream.connect(self.address)
                send(stream, ("prepare", check.model, check.grammar))
                message, _ = receive(stream)
                found: str | None = message[1]
                return found
            if self._is_closed:
                raise EngineFailure("the unit has ended")
        return "the grammar needs more memory than there is for all grammars"

    def _start(self) -> _Child:
        """Start the process. Under the lock. Raises EngineFailure."""
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        inherited = (theirs.fileno(), self._listener.fileno())
        command = [sys.executable, "-P", "-m", _KEEPER, *map(str, inherited), str(self._folder)]
        with theirs:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**kept, **_ONE_THREAD, "PYTHONPATH": paths},
                    pass_fds=inherited,
                    # Its group has its children too, and Ctrl-C in a terminal does not reach it. A
                    # session of its own would make its priorities void (`priority.py`).
                    process_group=0,
                )
            except OSError as error:
                ours.close()
                raise EngineFailure(f"the mask process does not start: {error}") from error
        self._child = child = _Child(process, ours)
        with contextlib.suppress(OSError):  # the reading thread sees that too
            send(ours, (tuple(map(astuple, self._models)),))
        threading.Thread(target=self._read, args=(child,), name="mask-checks", daemon=True).start()
        return child

    @staticmethod
    def _send(child: _Child, number: int, check: _Check) -> None:
        with child.lock, contextlib.suppress(OSError):
            send(child.control, (number, check.model, check.grammar))

    def _read(self, child: _Child) -> None:
        """Take the process's messages until it ends; then replace it."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                message, _ = receive(child.control)
                self._hear(child, message)
        _end(child)
        self._replace(child)

    def _hear(self, child: _Child, message: tuple[object, ...]) -> None:
        if message[0] == "checked":
            _, number, verdict = message
            assert isinstance(number, int)
            with self._lock:
                check = self._checks.pop(number, None)
            if check is not None:
                check.verdict.set_result(None if verdict is None else f"{verdict}")
        elif message[0] == "ready":
            child.is_ready = True
        else:
            self.num_restarts += 1
            logger.warning("the server of masks died and starts again")

    def _replace(self, child: _Child) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._child = None
            self._num_failed_starts = 0 if child.is_ready else self._num_failed_starts + 1
            may_start = self._num_failed_starts < _MOST_TRIES
            if may_start:
                self.num_restarts += 1
                logger.warning("the mask process died and starts again")
                try:
                    child = self._start()
                except EngineFailure as error:
                    logger.error("%s", error)
                    may_start = False
            again = list(self._checks.items()) if may_start else []
        if not may_start:
            self._fail_checks("the mask process does not start")
        for number, check in again:
            check.num_tries += 1
            if check.num_tries < _MOST_TRIES:
                self._send(child, number, check)
            else:
                with self._lock:
                    self._checks.pop(number, None)
                check.verdict.set_exception(EngineFailure("the mask process dies again and again"))

    def _fail_checks(self, message: str) -> None:
        with self._lock:
            checks = list(self._checks.values())
            self._checks.clear()
        for check in checks:
            check.verdict.set_exception(EngineFailure(message))


def _end(child: _Child) -> None:
    """End the process and its children, and reap it. Idempotent, from any thread."""
    with contextlib.suppress(OSError):
        child.control.shutdown(socket.SHUT_RDWR)
    try:
        child.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
    with child.lock:
        child.control.close()


def _private_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="muxcluster-masks-")
    if len(folder) > _LONGEST_PATH:
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="muxcluster-masks-", dir="/tmp")
    return Path(folder)
