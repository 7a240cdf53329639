"""Error messages of one line from pydantic's validation errors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from muxcluster.config.yamlfile import Location, key_text
from muxcluster.core.errors import ConfigError
from muxcluster.placement.names import nearest

_PREFIX = "Value error, "
_MOST_SHOWN = 80
_QUOTED = re.compile("'([^']*)'")


def first_problem(
    path: Path, root: type[BaseModel], lines: Mapping[Location, int], error: ValidationError
) -> ConfigError:
    """Return the first error of `error` (unknown keys before others) as a ConfigError."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    detail = details[0]
    location: Location = detail["loc"]
    if detail["type"] == "extra_forbidden":
        message = "unknown key" + nearest(str(location[-1]), _fields(root, location[:-1]))
    elif detail["type"] == "missing":
        message = "missing"
    elif detail["type"] == "literal_error" and isinstance(detail["input"], str):
        names = _QUOTED.findall(detail["ctx"]["expected"])
        message = f"no such choice: {shortened(detail['input'])}{nearest(detail['input'], names)}"
    else:
        message = _sentence(detail["msg"], detail["input"])
    return ConfigError(path, key_text(location), message, line_of(location, lines))


def line_of(location: Location, lines: Mapping[Location, int]) -> int | None:
    """Return the line of a key, or of the innermost enclosing key that is in the file."""
    while location and location not in lines:
        location = location[:-1]
    return lines.get(location)


def _sentence(message: str, value: Any) -> str:
    if message.startswith(_PREFIX):
        return message.removeprefix(_PREFIX)
    shown = "" if isinstance(value, dict | list) else f", not {shortened(value)}"
    return f"{message[0].lower()}{message[1:]}{shown}"


def shortened(value: Any) -> str:
    """Return `value` as written in the file, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _fields(model: type[BaseModel], location: Location) -> list[str]:
    for part in location:
        if isinstance(part, str):
            model = _section(model.model_fields[part].annotation)
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel]:
    """The section class inside X, X | None or list[X]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(_section(inner) for inner in get_args(annotation) if inner is not type(None))
