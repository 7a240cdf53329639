"""The private folder of one embedded server, and removal of those of killed servers."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from muxcluster.cluster.ray.process_logs import LOGS

PREFIX = "muxcluster-"
_OWNER = "owner"  # file in the folder that its server keeps locked while it runs
# Ray adds about 80 characters for its sockets; socket paths are limited to 103 or 107.
_LONGEST_BASE = 24


class ServerFolder:
    """A new folder of mode 0700 in the system's temporary folder.

    It holds the units' sockets, Ray's own files and the logs. Folders of servers that no longer run
    (`kill -9`, a power cut) are removed first.
    """

    def __init__(self, base: Path | None = None) -> None:
        """Create it in `base`, by default the system's temporary folder. Raises OSError."""
        base = _base() if base is None else base
        for left in abandoned(base):
            shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.ray, self.logs = self.path / "ray", self.path / LOGS
        self.logs.mkdir()
        # Locked under another name first: an unlocked file of this name looks like a dead server's.
        fresh = self.path / f"{_OWNER}.new"
        self._lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(self.path / _OWNER)

    def close(self) -> None:
        """Remove it with its content. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def abandoned(base: Path) -> Iterator[Path]:
    """Yield this user's folders in `base` whose server no longer runs."""
    with os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                folder = Path(entry.path)
                with contextlib.suppress(OSError):  # without an owner file, or gone meanwhile
                    if folder.lstat().st_uid == os.geteuid() and _is_unlocked(folder / _OWNER):
                        yield folder


def _is_unlocked(file: Path) -> bool:
    """Return whether no process holds the lock. Raises OSError if there is no such file."""
    handle = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _base() -> Path:
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= _LONGEST_BASE else "/tmp")
