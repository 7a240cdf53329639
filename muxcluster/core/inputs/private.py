"""Files and folders that only their owner may read, whatever the umask."""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def open_private(path: Path | str, flags: int) -> int:
    """Open `path`, created with mode 0600 if missing, and return the descriptor.

    One that is there gets that mode too; pipes, devices and other users' files keep theirs.
    Raises OSError.
    """
    handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        os.fchmod(handle, FILE_MODE)
    return handle


def tighten(path: Path) -> None:
    """Remove the rights of others from a file or folder of this user; it may be missing."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode):
            path.chmod(FOLDER_MODE if stat.S_ISDIR(found.st_mode) else FILE_MODE)


def make_private_folder(path: Path, ours: Iterable[str] | None = None) -> None:
    """Make the folder with mode 0700; its parents get the default mode.

    One that is there already gets that mode too. ours: names of our own files, for a folder that
    the user names: where it holds others as well it is left as it is. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(FOLDER_MODE, exist_ok=True)
    if ours is None or set(os.listdir(path)) <= set(ours):
        tighten(path)
