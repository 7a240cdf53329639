"""Keys of a terminal, one by one and without an echo."""

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "escape",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
# an escape sequence, or one character
_KEY = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[@-~]|[\x00-\x7f]")

ReadKeys = Callable[[float], list[str]]  # waits for keys, at most so many seconds


@contextmanager
def keyboard() -> Iterator[ReadKeys]:
    """Take keys as they are pressed until the end of the block; none where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield _none
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: _read(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def parsed(data: bytes) -> list[str]:
    """Return the names of keys: "up", "enter", or the character itself; others are left out."""
    keys = _KEY.findall(data)
    named = (_NAMES.get(key) or (chr(key[0]) if len(key) == 1 else None) for key in keys)
    return [name for name in named if name is not None and name.isprintable()]


def _read(descriptor: int, seconds: float) -> list[str]:
    ready, _, _ = select.select([descriptor], [], [], seconds)
    if not ready:
        return []
    data = os.read(descriptor, 64)
    # the terminal is gone
    return parsed(data) if data else ["q"]


def _none(seconds: float) -> list[str]:
    time.sleep(seconds)
    return []
