"""Child processes with a time limit."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).resolve().parents[3]
_KEPT_CHARACTERS = 1500
_LOGGED_CHARACTERS = 20_000
_PR_SET_PDEATHSIG = 1  # Of linux/prctl.h
_CLEAN_UP_S = 10.0
_LOOK_EVERY_S = 0.2
# Set in the environment of a script that is to end with whoever started it.
_BOUND = "MUXCLUSTER_BENCH_IS_BOUND"
# Process groups of children: a signal's handler is handed nothing, so it finds them here.
_RUNNING: set[int] = set()


@dataclass(frozen=True, slots=True)
class Ended:
    """A child process that has ended."""

    failure: str  # empty where it returned 0, else why it did not, with the end of its messages
    output: str  # what it wrote to stdout
    errors: str = ""  # what it wrote to stderr, the end of it


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
    _RUNNING.add(process.pid)
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output, errors = _end_all(process)
        failure = f"ended after {seconds:.0f} s. {_end(errors)}"
        return Ended(failure, output, errors[-_LOGGED_CHARACTERS:])
    except BaseException:
        _end_all(process)
        raise
    finally:
        _RUNNING.discard(process.pid)
    failure = f"exit code {process.returncode}. {_end(errors)}" if process.returncode else ""
    return Ended(failure, output, errors[-_LOGGED_CHARACTERS:])


def run_logged(
    command: Sequence[str], seconds: float, log: Path, show: Callable[[str], None]
) -> int | None:
    """Run `command` under this Python with all that it prints going to the end of the file `log`;
    ended with all its own children after `seconds`.

    show: is given each line as it comes. Returns the exit code; None where it was ended.
    """
    ends_at = monotonic() + seconds
    with log.open("a", encoding="utf-8") as written, log.open(encoding="utf-8") as read:
        read.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            (sys.executable, *command),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _search_path(), _BOUND: "1"},
        )
        _RUNNING.add(process.pid)
        rest = ""
        try:
            while process.poll() is None and monotonic() < ends_at:
                rest = _show_lines(rest + read.read(), show)
                sleep(_LOOK_EVERY_S)
            code = process.poll()
            if code is None:
                _end_all(process)
        except BaseException:
            _end_all(process)
            raise
        finally:
            _RUNNING.discard(process.pid)
        _show_lines(rest + read.read() + "\n", show)
    return code


def _show_lines(text: str, show: Callable[[str], None]) -> str:
    """Show the whole lines of `text`; returns what stands behind them."""
    *lines, rest = text.split("\n")
    for line in lines:
        show(line)
    return rest


def end_on_terminate() -> None:
    """Let SIGTERM end the children and raise SystemExit here, so that files are put away."""

    def end(*_: object) -> None:
        # Threads that wait for children would keep this process alive.
        for child in tuple(_RUNNING):
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGTERM)
        sys.exit("ended by SIGTERM")

    signal.signal(signal.SIGTERM, end)


def end_in_order() -> None:
    """`end_on_terminate`, and `die_with_parent` where `run_logged` started this process."""
    if os.environ.get(_BOUND):
        die_with_parent()
    else:
        end_on_terminate()


def die_with_parent() -> None:
    """Have Linux send SIGTERM to this process when the process that started it is gone.

    A part whose script was killed would go on and keep its memory on the GPU.
    """
    if sys.platform == "linux":
        end_on_terminate()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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
