"""Log lines of a server's processes: written to a folder, shown by the server."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import ray

from muxcluster.core.inputs.log_lines import is_json, json_line, log_formatter

# Environment variable, on an embedded Ray: the server's private folder (`ServerFolder`).
VARIABLE = "MUXCLUSTER_FOLDER"
LOGS = "logs"  # folder of logs in it
PERIOD_S = 0.25
_SUFFIX = ".log"
_MOST_BYTES = 16 * 2**20  # a longer file that was read to its end is truncated
_READ_BYTES = 2**20


def log_as(name: str, level: int = logging.INFO) -> None:
    """Let this Ray actor's process log from `level` on, with its child processes' output.

    On an embedded Ray the log is a file of the server's folder; on other clusters it is the
    worker's log in Ray's own folder. Outside Ray's actors nothing happens.
    """
    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return
    folder = os.path.join(os.environ.get(VARIABLE, ""), LOGS)
    if VARIABLE in os.environ and os.path.isdir(folder):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(os.path.join(folder, name + _SUFFIX), flags, 0o600)
        os.dup2(handle, 2)  # includes output of C code and child processes
        os.close(handle)
    # not sys.stderr: Serve puts a log of its own in the place of a replica's
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(log_formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("muxcluster").setLevel(level)
    # they warn about settings that are intended here; a logger's filter is not its children's
    for library in ("ray", "ray.actor", "ray.serve"):
        # a filter, because Serve resets its logger's level
        logging.getLogger(library).addFilter(lambda record: record.levelno >= logging.ERROR)


class LogFollower:
    """Pass each new line in the files of `folder` to `show`, after its file's name.

    Where the processes write JSON each line is an object with that name. A thread reads them until
    `close`.
    """

    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self._folder = folder
        self._show = show
        self._ends: dict[Path, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show what is left, and end. Idempotent."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(PERIOD_S):
            self._read_all()
        self._read_all()

    def _read_all(self) -> None:
        for file in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                self._read(file)
            except OSError:  # removed meanwhile
                continue

    def _read(self, file: Path) -> None:
        begin = self._ends.get(file, 0)
        with file.open("rb") as opened:
            opened.seek(begin)
            data = opened.read(_READ_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _READ_BYTES:
            whole = len(data)
        for line in data[:whole].decode(errors="replace").splitlines():
            self._show(json_line(file.stem, line) if is_json() else f"{file.stem} | {line}")
        self._ends[file] = begin + whole
        if begin + whole > _MOST_BYTES and file.stat().st_size == begin + whole:
            os.truncate(file, 0)
            self._ends[file] = 0
