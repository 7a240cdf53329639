"""Explains CUDA errors at the start of our processes from the state of this machine."""

import os
from pathlib import Path

from muxcluster.engine.gpu.mps.daemon import LOG_DIRECTORY
from muxcluster.engine.gpu.refusals import is_container, why_no_context

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def explained(said: str) -> str:
    """Return `said` in one line, with cause and remedy if it is a known failure."""
    marks = [Path(mark).exists() for mark in _CONTAINER_MARKS]
    return why_no_context(said, _daemon_log(), in_container=is_container(os.environ, marks))


def _daemon_log() -> str:
    """Return the end of the logs of the MPS daemon and its server; "" if we are no client."""
    directory = os.environ.get(LOG_DIRECTORY)
    if directory is None:
        return ""
    files = sorted(Path(directory).glob("*.log"))
    return " ".join(file.read_text(errors="replace")[-200:] for file in files)
