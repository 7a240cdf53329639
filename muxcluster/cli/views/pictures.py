"""Pictures of commands: file formats, and the check for matplotlib."""

from importlib import import_module
from pathlib import Path
from typing import Any

from muxcluster.core.errors import ConfigError


def picture_of(module: str, path: Path) -> Any:
    """Return `module.picture`, imported on demand, for the format of `path`.

    Raises ConfigError for an unknown format, or if matplotlib is missing.
    """
    if path.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(path, "", "a plot is written as .svg or .png")
    try:
        return import_module(module).picture
    except ImportError as error:
        message = f"drawing needs matplotlib ({error}): pip install 'muxcluster[plot]'"
        raise ConfigError(path, "", message) from error
