"""An MPS daemon of our own for one GPU, used by one unit at a time; other daemons stay untouched.

A GPU belongs to one unit by the plan, so a second unit is refused: shares of two units would not
add up, and an error in one would break the other. The second unit first waits a while, because a
restarted unit may come before its predecessor has ended.
"""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.gpu_id import VISIBLE, folder_name, seen_by_clients
from muxcluster.engine.gpu.mps.control import CONTROL, DaemonControl
from muxcluster.engine.gpu.refusals import ANOTHER_DAEMON, GPU_TAKEN, NO_CONTROL, why_not_started

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
NEIGHBOUR_S = 20.0  # time for a predecessor to end
_QUIT = "quit -t 5"
_GONE_S = 10.0
_POLL_S = 0.05


class MpsDaemon:
    """A daemon from `start` to `stop`; one process may have one per GPU.

    root: folder for locks, pipes and logs of all GPUs, writable only by this user; by default one
    in the system's folder for temporary files.
    """

    def __init__(self, gpu_id: str, control: DaemonControl, root: Path | None = None) -> None:
        self._gpu_id = gpu_id
        self._control = control
        root = root or Path(tempfile.gettempdir(), f"muxcluster-mps-{os.getuid()}")
        self._folder = root / folder_name(gpu_id)
        self._lock: int | None = None
        self._is_started = False

    @property
    def clients(self) -> dict[str, str]:
        """Environment of the daemon's clients."""
        return {**self._folders, VISIBLE: seen_by_clients(self._gpu_id)}

    @property
    def _folders(self) -> dict[str, str]:
        return {
            PIPE_DIRECTORY: str(self._folder / "pipe"),
            LOG_DIRECTORY: str(self._folder / "log"),
        }

    def start(self, neighbour_s: float = NEIGHBOUR_S) -> None:
        """Lock the GPU, end a daemon that a crash left, start ours, and check that it answers.

        Raises EngineFailure: the program is missing, or another unit or daemon has the GPU.
        """
        if not self._control.is_installed():
            raise EngineFailure(NO_CONTROL)
        self._take_lock(neighbour_s)
        self._quit()  # a leftover: the lock is ours, so its unit is gone
        for folder in self._folders.values():
            Path(folder).mkdir(exist_ok=True)
        said = self._folder / "log" / "start.txt"
        self._is_started = True
        code = self._control.start({**self._folders, VISIBLE: self._gpu_id}, said)
        words = said.read_text(errors="replace") if said.exists() else ""
        if code:
            raise EngineFailure(why_not_started(code, f"{words} {self._log()}"))
        answer = self._control.ask(self._folders, "get_default_active_thread_percentage")
        if "Cannot find" in answer:
            raise EngineFailure(ANOTHER_DAEMON.format(said=f"ours is gone at once: {answer}"))

    def stop(self) -> None:
        """End the daemon and its server, and unlock the GPU; idempotent."""
        if self._is_started:
            self._quit()
            self._is_started = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self, neighbour_s: float) -> None:
        self._folder.parent.mkdir(mode=0o700, exist_ok=True)
        if self._folder.parent.stat().st_uid != os.getuid():
            raise EngineFailure(f"{self._folder.parent} belongs to another user")
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline_s = time.monotonic() + neighbour_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    holder = os.pread(lock, 32, 0).decode().strip() or "unknown"
                    os.close(lock)
                    message = GPU_TAKEN.format(gpu_id=self._gpu_id, holder=holder)
                    raise EngineFailure(message) from None
                time.sleep(_POLL_S)
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        self._lock = lock

    def _quit(self) -> None:
        """Ask the daemon in our folder to end; terminate its process if it stays."""
        file = self._folder / "pipe" / f"{CONTROL}.pid"
        if not self._is_started and not file.exists():
            return
        pid = 0
        with suppress(OSError, ValueError):
            pid = int(file.read_text(encoding="ascii"))
        with suppress(OSError, subprocess.SubprocessError):
            self._control.ask(self._folders, _QUIT)
        deadline_s = time.monotonic() + _GONE_S
        while pid and _is_daemon(pid):
            if time.monotonic() >= deadline_s:
                with suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
                break
            time.sleep(_POLL_S)
        file.unlink(missing_ok=True)

    def _log(self) -> str:
        files = sorted((self._folder / "log").glob("*.log"))
        return " ".join(file.read_text(errors="replace")[-300:] for file in files)


def _is_daemon(pid: int) -> bool:
    # Process ids are used again; names have at most 15 characters.
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == CONTROL[:15]
    except OSError:
        return False
