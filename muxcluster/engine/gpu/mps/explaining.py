"""A CUDA error at the start of a process of ours, explained with what this machine looks like."""

import os
from pathlib import Path

from muxcluster.engine.gpu.mps.daemon import LOG_DIRECTORY
from muxcluster.engine.gpu.refusals import is_container, why_no_context

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def explained(said: str) -> str:
    """`said` in one line, with its cause and mend where it is a known failure."""
    marks = [Path(mark).exists() for mark in _CONTAINER_MARKS]
    return why_no_context(said, _daemon_log(), in_container=is_container(os.environ, marks))


def _daemon_log() -> str:
    """The end of what the MPS daemon and its server wrote; we are a client, or there is none."""
    directory = os.environ.get(LOG_DIRECTORY)
    if directory is None:
        return ""
    files = sorted(Path(directory).glob("*.log"))
    return " ".join(file.read_text(errors="replace")[-200:] for file in files)
