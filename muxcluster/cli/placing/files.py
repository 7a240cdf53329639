"""Output files, written whole or not at all."""

import os
from errno import EACCES
from pathlib import Path
from tempfile import TemporaryFile

from muxcluster.core.errors import ConfigError


def check_writable(path: Path) -> None:
    """Check, before work is done for it, that `path` can be written. Raises ConfigError."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ConfigError(path, "", f"no such directory: {path.parent}")
    if target.is_dir():
        raise ConfigError(path, "", "is a directory")
    try:
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        if target.is_file() or not target.exists():
            TemporaryFile(dir=target.parent).close()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of `path`. Raises ConfigError.

    A device or pipe is written to directly; a link stays, its target changes.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(content)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError | ValueError) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return ConfigError(path, "", f"cannot be written: {reason}")
