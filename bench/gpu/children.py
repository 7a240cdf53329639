"""Runs a script of ours in a process of its own, for a limited time."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_KEPT_CHARACTERS = 1500
_CLEAN_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """failure: empty where it returned 0, else why it did not, with the end of its messages.
    output: what it wrote to stdout."""

    failure: str
    output: str


def run_child(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run `command` under this Python; ended with all its own children after `seconds`.

    environment: added to ours.
    """
    process = subprocess.Popen(
        (sys.executable, *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _search_path(), **(environment or {})},
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output, errors = _end_all(process)
        return Ended(f"ended after {seconds:.0f} s. {_end(errors)}", output)
    except BaseException:
        _end_all(process)
        raise
    if process.returncode:
        return Ended(f"exit code {process.returncode}. {_end(errors)}", output)
    return Ended("", output)


def _search_path() -> str:
    """Ours first: processes that a unit starts look for muxcluster there."""
    others = os.environ.get("PYTHONPATH")
    return str(ROOT) if not others else f"{ROOT}{os.pathsep}{others}"


def _end_all(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End the child and its own children, with time to clean up; what it had written."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=_CLEAN_UP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def _end(errors: str) -> str:
    return errors.strip()[-_KEPT_CHARACTERS:]
