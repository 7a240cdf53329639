"""Checked single values of a Hugging Face config.json."""

from collections.abc import Mapping
from typing import Any


class ShapeError(ValueError):
    """No shape can be built: a config.json is not one of a causal language model that we can plan
    for (the message names the key), or a name is unknown (it names the nearest)."""


_MOST = 2**40  # larger than any size of a model; products of a few stay finite as floats


def integer(config: Mapping[str, Any], key: str, least: int) -> int:
    """Return the integer under `key`, `least` if it is missing. Raises ShapeError."""
    value = config.get(key, least)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least else "an integer of at least 0"
        raise ShapeError(f"{key} is {value!r:.80}, expected {kind}")
    if value > _MOST:
        raise ShapeError(f"{key} is {value!r:.80}, expected {_MOST} at most")
    return value


def first_integer(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """Return the positive integer under the first of `keys` that exists; None if there is none.

    Raises ShapeError.
    """
    return next((integer(config, key, 1) for key in keys if key in config), None)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """The truth value under `key`. Raises ShapeError."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ShapeError(f"{key} is {value!r:.80}, expected true or false")
    return value


def listed(config: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """The entries of the list under `key`, none where it is missing. Raises ShapeError."""
    value = config.get(key, ())
    if not isinstance(value, list | tuple):
        raise ShapeError(f"{key} is {value!r:.80}, expected a list")
    return tuple(value)
