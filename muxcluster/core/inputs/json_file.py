"""JSON files of users: limited in size and depth, with errors of one line."""

import json
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError

# Of lists and objects in one another: far more than any file of ours, and far from the depth at
# which Python's own functions (repr, comparison) end in RecursionError.
MOST_DEPTH = 64
MOST_BYTES = 256 * 2**20


def read_json(file: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the value in `file`. Raises OSError; ValueError, in one line, if it is not JSON."""
    with file.open("rb") as opened:
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"larger than {most_bytes:,} bytes")
    return parse_nested(data)


def parse_nested(text: str | bytes) -> Any:
    """Parse `text`. Raises ValueError, in one line, if it is not JSON or too deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MOST_DEPTH} deep") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested more than {MOST_DEPTH} deep")


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in `file`. Raises LoadError, naming the file, if there is none."""
    value = _read(file)
    if not isinstance(value, dict):
        raise LoadError(file, "is not a JSON object")
    return value


def read_json_list(file: Path) -> list[Any]:
    """Return the JSON list in `file`. Raises LoadError, naming the file, if there is none."""
    value = _read(file)
    if not isinstance(value, list):
        raise LoadError(file, "is not a JSON list")
    return value


def _read(file: Path) -> Any:
    try:
        return read_json(file)
    except FileNotFoundError as error:
        raise LoadError(file, "no such file") from error
    except OSError as error:
        raise LoadError(file, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(file, f"cannot be read as JSON: {error}") from error
