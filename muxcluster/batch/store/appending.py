"""Appends to a file whose valid length is kept elsewhere."""

import os
from collections.abc import Iterable
from pathlib import Path

from muxcluster.core.errors import StorageFailed


def append(path: Path, size: int, lines: Iterable[bytes]) -> int:
    """Write `lines`, each with an end of line, after the first `size` bytes; return the new length.

    Bytes beyond `size` are removed: a process may have died between writing and recording. On
    return everything is on the disk. Raises StorageFailed, with the file as long as before.
    """
    data = b"".join(line + b"\n" for line in lines)
    if data:
        write_at(path, size, data)
    return size + len(data)


def write_at(path: Path, size: int, data: bytes) -> None:
    """Write `data` after the first `size` bytes, as the end of the file, on the disk.

    Raises StorageFailed, with the file as long as before.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write(handle, data, size)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error


def _write(handle: int, data: bytes, offset: int) -> None:
    view, end = memoryview(data), offset
    try:
        while view:
            num_written = os.pwrite(handle, view, end)
            view, end = view[num_written:], end + num_written
        os.ftruncate(handle, end)
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, offset)
        raise


def cut(path: Path, size: int) -> None:
    """Make the file end after `size` bytes; create an empty one if there is none.

    Raises StorageFailed.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageFailed(path, error.strerror or str(error)) from error
