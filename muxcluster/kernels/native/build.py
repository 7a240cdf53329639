"""Compiles the C++ kernels for this machine's processor and loads them."""

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

SWITCH = "MUXCLUSTER_NATIVE"  # environment variable: "off" leaves all to torch
_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = (
    "-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
# Of all commands together. A unit waits a minute for an owner that shows no sign of work.
COMPILE_S = 40.0


class CannotCompile(Exception):
    """There is no compiler here, or it failed; the message says which."""


@lru_cache
def library(sources: Sequence[Path] = _SOURCES) -> CDLL | None:
    """Return the library compiled from C++ files, from the cache if it was compiled before.

    None where there is no compiler, it fails, or it is switched off; the log says so. The cache is
    `muxcluster` in `$XDG_CACHE_HOME` (or ~/.cache), by sources, compiler and processor.
    """
    if os.environ.get(SWITCH) == "off":
        logger.info("native kernels: switched off (%s)", SWITCH)
        return None
    try:
        return _built(sources)
    except (CannotCompile, OSError) as error:
        logger.warning("native kernels: %s; products and attention are torch's", error)
        return None


def _built(sources: Sequence[Path]) -> CDLL:
    """Raises CannotCompile and OSError."""
    compiler = _compiler()
    headers = sorted({header for each in sources for header in each.parent.glob("*.h")})
    parts = [each.read_bytes() for each in (*sources, *headers)]
    parts += [" ".join((*compiler, *_FLAGS)).encode(), _version(compiler), _processor()]
    name = f"kernels-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:24]}.so"
    with _folder(name) as folder:
        target = folder / name
        try:
            return CDLL(str(target))
        except OSError:  # it is not there, or was cut off by a crash
            pass
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together compile once
            try:
                return CDLL(str(target))
            except OSError:
                _compile(compiler, sources, target)
        return CDLL(str(target))


def _compiler() -> tuple[str, ...]:
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[each] for each in _COMPILERS]:
        found = shutil.which(command[0])
        if found is not None:
            return (found, *command[1:])
    raise CannotCompile(f"no C++ compiler ({' '.join(named) or ', '.join(_COMPILERS)})")


def _version(compiler: Sequence[str]) -> bytes:
    return subprocess.run((*compiler, "--version"), capture_output=True, check=False).stdout


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return b""
    told = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)})).encode()


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Our folder of the cache; one that lasts as long as the context where that cannot be had.

    name: of the library; where it is there, the folder need not be writable.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = Path(root) / "muxcluster"
        problem = _problem_of(folder, name)
    except (OSError, RuntimeError) as error:  # the latter: this user has no home
        problem = f"{error}"
    if not problem:
        yield folder
        return
    logger.warning("native kernels: compiled for this process alone, as %s", problem)
    with tempfile.TemporaryDirectory(prefix="muxcluster-native-") as own:
        yield Path(own)


def _problem_of(folder: Path, name: str) -> str:
    """Return why libraries in `folder` are not used, "" if they are. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    # what others may write is not loaded into this process
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return f"{folder} is not a folder of this user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} may be written by others"
    if not os.access(folder, os.W_OK) and not (folder / name).exists():
        return f"{folder} may not be written"
    return ""


def _compile(compiler: Sequence[str], sources: Sequence[Path], target: Path) -> None:
    """Raises CannotCompile."""
    end_s = time.monotonic() + COMPILE_S
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [str(Path(folder) / f"{each.stem}.o") for each in sources]
        whole = Path(folder) / "kernels.so"
        compiling = (
            (*compiler, *_FLAGS, "-c", str(source), "-o", made)
            for source, made in zip(sources, objects, strict=True)
        )
        _run(end_s, *compiling)
        # Linked without OpenMP's runtime: torch has loaded one, and there must be no second.
        _run(end_s, (*compiler, "-shared", *objects, "-o", str(whole)))
        whole.replace(target)


def _run(end_s: float, *commands: Sequence[str]) -> None:
    """Run commands side by side until all have ended. Raises CannotCompile."""
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # a compiler has children, which hold the pipe open
        )
        for command in commands
    ]
    try:
        for command, process in zip(commands, running, strict=True):
            _wait(end_s, command[0], process)
    finally:
        for process in running:
            if process.returncode is None:  # it runs, or nobody has asked for its end
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def _wait(end_s: float, name: str, process: subprocess.Popen[str]) -> None:
    """Raises CannotCompile where the process fails, or has not ended at `end_s`."""
    try:
        _, errors = process.communicate(timeout=max(0.1, end_s - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(f"{name} takes longer than {COMPILE_S:g} s") from error
    if process.returncode:
        lines = errors.strip().splitlines() or [f"status {process.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise CannotCompile(f"{name} failed: {first}")
