"""Keys of cases by everything that determines their outcome, our own code included."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

import muxcluster

# Packages of muxcluster whose code determines the result of a simulation.
_DECIDING = ("core", "kvcache", "offline", "placement", "scheduling", "sim", "workload")
# Fields that say how a plan was found, not what it is.
_UNTIMED = {"plan": {"solve_seconds", "bound"}}


def key_of(*values: object) -> str:
    """Return 64 hex digits, equal for equal values.

    values: dataclasses, pydantic models, arrays, paths, plain values and collections of them.
    Raises TypeError for anything else.
    """
    text = json.dumps([_plain(value) for value in values], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def code_key() -> str:
    """Return the key of the source that simulates and plans (without plots)."""
    here = Path(str(muxcluster.__file__)).parent
    folders = [here / name for name in _DECIDING]
    digest = sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.parent.name == "plot":
                continue
            digest.update(f"{path.relative_to(folder.parent)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, BaseModel):
        left_out = _UNTIMED.get(type(value).__name__.lower(), set())
        return [type(value).__name__, value.model_dump(mode="json", exclude=left_out)]
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return [type(value).__name__, named]
    if isinstance(value, Mapping):
        return sorted([_plain(key), _plain(each)] for key, each in value.items())
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), sha256(value.tobytes()).hexdigest()]
    if isinstance(value, Path):
        return str(value)
    return _collected(value)


def _collected(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, frozenset | set):
        return sorted(_plain(each) for each in value)
    raise TypeError(f"{type(value).__name__} has no place in a key")
