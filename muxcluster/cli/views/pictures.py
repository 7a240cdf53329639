"""Pictures that a command draws: in which format, and with a library that not everybody has."""

from importlib import import_module
from pathlib import Path
from typing import Any

from muxcluster.core.errors import ConfigError


def picture_of(module: str, path: Path) -> Any:
    """`module.picture`, which draws in the format of `path`; loaded only when it is asked for.

    Raises ConfigError if it can draw no such file, or matplotlib is missing.
    """
    if path.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(path, "", "a plot is written as .svg or .png")
    try:
        return import_module(module).picture
    except ImportError as error:
        message = f"drawing needs matplotlib ({error}): pip install 'muxcluster[plot]'"
        raise ConfigError(path, "", message) from error
