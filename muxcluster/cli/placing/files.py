"""Files that a command writes: whole or not at all."""

import os
from pathlib import Path

from muxcluster.core.errors import ConfigError


def write_bytes(path: Path, content: bytes) -> None:
    """Puts `content` in place of what is at `path`, if anything. Raises ConfigError.

    A device or pipe is written to as it is; a link stays, its target changes.
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
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(path, "", f"cannot be written: {reason}") from error
