"""JSON into frozen dataclasses, with strict checks by their annotations.

This is not pydantic: the engine imports the cost model on machines that have little more than
torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value beside its type, for use in `Annotated`."""

    says: str  # text after "must be "
    holds: Callable[[Any], bool]


class Fault(ValueError):
    """A wrong value.

    key: its place in the document, such as "models[0].name"; empty for the document itself.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.message = message


def build(kind: Any, value: Any, key: str = "") -> Any:
    """Convert `value`, from `json.loads`, to `kind`: a dataclass, `tuple[X, ...]`, `Literal`, int,
    float, str or bool, `X | None` of these, any of them `Annotated` with rules.

    Unknown keys of a dataclass are refused; missing ones get its defaults. An int is accepted for a
    float; no other conversion is made. Raises Fault for the first error.
    """
    rules = []
    if get_origin(kind) is Annotated:
        kind, *rules = get_args(kind)
    found = _built(kind, value, key)
    for rule in rules:
        if isinstance(rule, Rule) and not rule.holds(found):
            raise Fault(key, f"must be {rule.says}")
    return found


def _built(kind: Any, value: Any, key: str) -> Any:
    origin = get_origin(kind)
    if origin is UnionType:  # X | None
        (other,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else build(other, value, key)
    if origin is tuple:
        if not isinstance(value, list):
            raise Fault(key, f"expected a list, found {_named(value)}")
        item = get_args(kind)[0]
        return tuple(build(item, each, f"{key}[{index}]") for index, each in enumerate(value))
    if origin is Literal:
        choices = get_args(kind)
        if value not in choices or type(value) not in map(type, choices):
            raise Fault(key, f"must be {' or '.join(map(repr, choices))}")
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return _object(kind, value, key)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Fault(key, "is too large a number") from None
    if type(value) is not kind:
        raise Fault(key, f"expected {kind.__name__}, found {_named(value)}")
    return value


def _object(kind: Any, value: Any, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise Fault(key, f"expected an object, found {_named(value)}")
    start = f"{key}." if key else ""
    names = {field.name for field in fields(kind)}
    for name in value:
        if name not in names:
            raise Fault(f"{start}{name}", "no such key here")
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = build(hints[field.name], value[field.name], start + field.name)
        elif field.default is MISSING:
            raise Fault(start + field.name, "missing")
    return kind(**found)


def _named(value: Any) -> str:
    return "null" if isinstance(value, NoneType) else type(value).__name__
