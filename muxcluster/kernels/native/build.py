"""Compiles the C++ kernels for this machine's processor and loads them."""

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

SWITCH = "MUXCLUSTER_NATIVE"  # environment variable: "off" leaves all to torch
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = (
    "-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_COMPILE_S = 300.0


class CannotCompile(Exception):
    """There is no compiler here, or it failed; the message says which."""


@lru_cache
def library(source: Path) -> CDLL | None:
    """Return the library compiled from a C++ file, from the cache if it was compiled before.

    None where there is no compiler, it fails, or it is switched off; the log says so. The cache is
    `muxcluster` in `$XDG_CACHE_HOME` (or ~/.cache), by source, compiler and processor.
    """
    if os.environ.get(SWITCH) == "off":
        logger.info("native kernels: switched off (%s)", SWITCH)
        return None
    try:
        return _built(source)
    except (CannotCompile, OSError) as error:
        logger.warning("native kernels: %s; products are torch's", error)
        return None


def _built(source: Path) -> CDLL:
    """Raises CannotCompile and OSError."""
    compiler = _compiler()
    text = source.read_bytes()
    key = b"\0".join((text, *(flag.encode() for flag in _FLAGS), _version(compiler), _processor()))
    name = f"{source.stem}-{hashlib.sha256(key).hexdigest()[:24]}.so"
    with _folder() as folder:
        target = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together compile once
            if not target.exists():
                _compile(compiler, source, target)
        return CDLL(str(target))


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise CannotCompile(f"no C++ compiler ({named or ', '.join(_COMPILERS)})")


def _version(compiler: str) -> bytes:
    return subprocess.run((compiler, "--version"), capture_output=True, check=False).stdout


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return b""
    told = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)})).encode()


@contextmanager
def _folder() -> Iterator[Path]:
    """Our folder of the cache; one that lasts as long as the context where that cannot be had."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(root) / "muxcluster"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        # what others may write is not loaded into this process
        is_ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_ours = is_ours and os.access(folder, os.W_OK)
    except OSError:
        is_ours = False
    if is_ours:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="muxcluster-native-") as own:
        yield Path(own)


def _compile(compiler: str, source: Path, target: Path) -> None:
    """Raises CannotCompile."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects, whole = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        # Linked without OpenMP's runtime: torch has loaded one, and there must be no second.
        _run(compiler, *_FLAGS, "-c", str(source), "-o", str(objects))
        _run(compiler, "-shared", str(objects), "-o", str(whole))
        whole.replace(target)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S)
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(f"{command[0]} ran longer than {_COMPILE_S:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise CannotCompile(f"{command[0]} failed: {first}")
