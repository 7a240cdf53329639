"""Reads the lines of a file of any size, one in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_SKIP_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line."""

    number: int  # from 1
    offset: int  # of its text in the file, bytes
    size: int
    data: bytes | None  # its text without the end of line; None if it is over the limit


def read_lines(file: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """Yield the lines from the file's position, which counts as offset 0.

    Of a longer line at most `max_bytes` are in memory. Raises OSError.
    """
    number, offset = 0, 0
    while chunk := file.readline(max_bytes + 1):
        number += 1
        num_read, is_ended = len(chunk), chunk.endswith(b"\n")
        if is_ended or num_read <= max_bytes:
            data = chunk[:-1] if is_ended else chunk
            yield Line(number, offset, len(data), data)
        else:
            while not is_ended and (rest := file.readline(_SKIP_BYTES)):
                num_read, is_ended = num_read + len(rest), rest.endswith(b"\n")
            yield Line(number, offset, num_read - is_ended, None)
        offset += num_read
