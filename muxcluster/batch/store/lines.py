"""Lines of a file of any size, one in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_SKIP_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line. number: counted from 1. offset, size: where its text lies, in bytes.

    data: its text without the end of line; None where that is longer than the limit.
    """

    number: int
    offset: int
    size: int
    data: bytes | None


def read_lines(file: BinaryIO, max_bytes: int) -> Iterator[Line]:
    """The lines from the file's present position, which counts as offset 0.

    Of a line longer than `max_bytes` no more than that is held. Raises OSError.
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
