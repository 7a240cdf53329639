"""Reading of profiles: those of `muxcluster profile`, and MuxServe's table for its A100s, each
recognised by its form."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from muxcluster.core.inputs.json_file import read_json
from muxcluster.placement.cost import Profile, read_muxserve


def read_profile(path: Path) -> Profile:
    """Read the measurements in `path`.

    Raises ValueError: one line with the error, without the file's name.
    """
    content = _json_object(path)
    try:
        return read_muxserve(path) if _is_published(content) else Profile.read(path)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from error


def is_published(path: Path) -> bool:
    """Return whether the file is MuxServe's table. Raises ValueError as `read_profile` does."""
    return _is_published(_json_object(path))


def _json_object(path: Path) -> Mapping[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("no profile: expected a JSON object")
    return content


def _is_published(content: Mapping[str, Any]) -> bool:
    """Return whether it is a table by model, tp, SM percentage, batch and length only."""
    if not content or not content.keys().isdisjoint(each.name for each in fields(Profile)):
        return False
    return all(isinstance(each, dict) for each in content.values())
