"""One line of JSON per request at its end, by request id; costs nothing while it is off."""

import logging
import os
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path

import msgspec

from muxcluster.core.inputs.private import open_private

logger = logging.getLogger("muxcluster.requests")


class _PrivateFile(logging.FileHandler):
    def _open(self) -> TextIOWrapper:
        handle = open_private(self.baseFilename, os.O_WRONLY | os.O_APPEND)
        return open(handle, "a", encoding="utf-8")


def is_on() -> bool:
    """True where somebody reads the lines (level INFO of logger `muxcluster.requests`)."""
    return logger.isEnabledFor(logging.INFO)


def write(fields: Mapping[str, object]) -> None:
    """One line."""
    logger.info(msgspec.json.encode(fields).decode())


def write_to(path: Path) -> None:
    """From now on lines are appended to `path`, which only its owner may read.

    Raises OSError where it cannot be opened.
    """
    sink = _PrivateFile(path)
    sink.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(sink)
    logger.setLevel(logging.INFO)
    logger.propagate = False
