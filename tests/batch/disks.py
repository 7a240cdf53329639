"""A file system that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 1 << 20


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """A file system of a megabyte at `place`; the test is skipped where none can be mounted."""
    place.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place))
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(("umount", "-l", str(place)), check=True)


def fill(disk: Path, free_bytes: int = 0) -> Path:
    """Leave so many bytes; the file that takes the others."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    free = DISK_BYTES - used_bytes(disk)
    ballast.write_bytes(bytes(free - min(free, free_bytes)))
    return ballast


def used_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
