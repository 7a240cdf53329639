"""JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from muxcluster.core.errors import LoadError


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises LoadError naming it where there is none."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise LoadError(file, "no such file") from error
    except (OSError, ValueError) as error:
        raise LoadError(file, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(file, "is not a JSON object")
    return value
