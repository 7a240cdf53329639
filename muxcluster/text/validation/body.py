"""Parses a decoded body as a schema; every error names the field."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from muxcluster.core.errors import (
    InvalidValue,
    MissingParameter,
    RequestError,
    UnsupportedParameter,
)
from muxcluster.core.inputs.clip import plain
from muxcluster.text.validation.fields import check_outside_fields

Body = TypeVar("Body", bound=BaseModel)


def parse(schema: type[Body], data: object, *, lenient: bool = False) -> Body:
    """Return `data` as a `schema`.

    Raises InvalidValue, MissingParameter or UnsupportedParameter with `param` naming the field.
    """
    if not isinstance(data, Mapping):
        raise InvalidValue("the body must be a JSON object")
    check_outside_fields(data, data.keys() - schema.model_fields.keys(), lenient=lenient)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False)[0]) from None


def _request_error(details: ErrorDetails) -> RequestError:
    """Return pydantic's first error as one of ours."""
    param = field_path(details["loc"])
    if details["type"] == "missing":
        return MissingParameter(f"missing required field {param}", param)
    if details["type"] == "extra_forbidden":
        return UnsupportedParameter(f"unknown field {param}", param)
    return InvalidValue(f"{param}: {details['msg']}", param)


def field_path(loc: tuple[int | str, ...]) -> str:
    """Return `("messages", 0, "role")` as `messages[0].role`; clients' keys are clipped."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{plain(part)}" if path else plain(part)
    return path
