"""One line of JSON per request at its end, by request id; costs nothing while it is off."""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

logger = logging.getLogger("muxcluster.requests")


def is_on() -> bool:
    """True where somebody reads the lines (level INFO of logger `muxcluster.requests`)."""
    return logger.isEnabledFor(logging.INFO)


def write(fields: Mapping[str, object]) -> None:
    """One line."""
    logger.info(msgspec.json.encode(fields).decode())


def write_to(path: Path) -> None:
    """From now on lines are appended to `path`. Raises OSError where it cannot be opened."""
    sink = logging.FileHandler(path)
    sink.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(sink)
    logger.setLevel(logging.INFO)
    logger.propagate = False
