"""Values that processes of different versions of muxcluster exchange while a cluster is upgraded.

Python pickles a dataclass with slots as a list of values in the order of its fields, so that a
version with one field more or less reads values into the wrong fields, or none. Here every
dataclass, and every section of the configuration, is pickled by the names of its fields.
"""

import io
import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from muxcluster.core.errors import EngineFailure

# Version of what processes of a cluster tell each other and of the controller's stored state. It
# grows where a newer version could not read an older one's values by their names alone; versions
# that differ by one work together.
# 4 was the last whose values had no names; 5 was never used, so that 4 is no neighbour.
WIRE = 6
# Classes that have moved since WIRE - 1: "module:name" as it was, and as it is.
MOVED: Mapping[str, str] = MappingProxyType({})


class Carried:
    """Base of the dataclasses that processes of other versions may read.

    A reader drops fields that it does not know and takes defaults for those that it misses, also in
    the values inside. Raises EngineFailure, in the reader, where that is not enough: for a value of
    a class that it does not know, even in a field that it would drop.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, (packed(self),)


def talks_to(wire: int) -> bool:
    """Return whether this version works together with one whose `WIRE` is `wire`."""
    return abs(wire - WIRE) <= 1


def is_older(version: str, other: str) -> bool:
    """Return whether a version of muxcluster, such as "0.10.2", is older than another one."""
    return _numbers(version) < _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    return tuple(int(digits) for part in parts if (digits := "".join(filter(str.isdigit, part))))


def packed(value: object) -> bytes:
    """Return `value` as `unpacked` reads it, in this version or a neighbour."""
    buffer = io.BytesIO()
    _ByName(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the value in `data`, which must come from a process of this cluster.

    Raises EngineFailure if this version does not know one of its classes or misses a field that
    has no default.
    """
    try:
        return _Reader(io.BytesIO(data)).load()
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        message = f"a value of another version of muxcluster cannot be read: {error}"
        raise EngineFailure(message) from error


class _ByName(pickle.Pickler):
    """Writes dataclasses and pydantic's models as class and fields by name."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            return NotImplemented
        if is_dataclass(value):
            return _made, (type(value), {f.name: getattr(value, f.name) for f in fields(value)})
        if hasattr(type(value), "model_construct"):
            given = {name: getattr(value, name) for name in value.model_fields_set}
            return _model, (type(value), given)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what `_ByName` has written, and finds classes where they are now."""

    def find_class(self, module: str, name: str) -> Any:
        place, _, found = MOVED.get(f"{module}:{name}", f"{module}:{name}").partition(":")
        return super().find_class(place, found)


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a dataclass's value: unknown fields are dropped, missing ones have their defaults."""
    known = {field.name for field in fields(kind) if field.init}
    return kind(**{name: value for name, value in values.items() if name in known})


def _model(kind: Any, values: Mapping[str, Any]) -> Any:
    """As `_made`, of a pydantic model, whose values were checked when they were read."""
    known = {name: value for name, value in values.items() if name in kind.model_fields}
    return kind.model_construct(**known)
