"""Text files, gzip-compressed where the name ends in .gz, written atomically."""

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from muxcluster.workload.files.put import put


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """Open for reading, UTF-8. errors: as in `open`. Raises OSError."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), "utf-8", errors, newline="")
    return path.open(encoding="utf-8", errors=errors, newline="")


@contextmanager
def new_text(path: Path) -> Iterator[TextIO]:
    """Open for writing, UTF-8; `path` appears or is replaced only when the block succeeds.

    The same text gives the same bytes: gzip's header has no name or time. Raises OSError.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                packed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
                with packed, io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text:
                    yield text
            else:
                with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                    yield text
        put(part, path)
    finally:
        part.unlink(missing_ok=True)
