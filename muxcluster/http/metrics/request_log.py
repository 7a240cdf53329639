"""The request log: a line of JSON for each request at its end. Off by default."""

import logging
import os
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path

import msgspec

from muxcluster.core.inputs.private import open_private

logger = logging.getLogger("muxcluster.requests")
logger.setLevel(logging.WARNING)  # off, whatever others of this process log


class _PrivateFile(logging.FileHandler):
    def _open(self) -> TextIOWrapper:
        handle = open_private(self.baseFilename, os.O_WRONLY | os.O_APPEND)
        return open(handle, "a", encoding="utf-8")


def is_on() -> bool:
    """True if the log is on (level INFO of logger `muxcluster.requests`)."""
    return logger.isEnabledFor(logging.INFO)


def write(fields: Mapping[str, object]) -> None:
    """Write one line."""
    logger.info(msgspec.json.encode(fields).decode())


def write_to(path: Path) -> None:
    """Append lines to `path` from now on; only its owner may read it.

    Raises OSError if it cannot be opened.
    """
    append_to(logger, path)


def append_to(lines: logging.Logger, path: Path) -> None:
    """Append the messages of a logger to `path`, and to no other log. As `write_to`."""
    sink = _PrivateFile(path)
    sink.setFormatter(logging.Formatter("%(message)s"))
    lines.addHandler(sink)
    lines.setLevel(logging.INFO)
    lines.propagate = False
