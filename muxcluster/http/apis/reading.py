"""Checks the shapes of values in request bodies, and what all these APIs take beside their own."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from muxcluster.core.errors import InvalidValue, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.text.schemas import CacheSalt, Identifier, Int64, NonEmpty, SloBody
from muxcluster.text.validation.prompts import MAX_MESSAGES

Json = dict[str, Any]
Tokens = Annotated[int, Field(ge=1, lt=2**63)]


class ApiBody(BaseModel):
    """Fields that mean in these APIs what they mean in chats."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty
    seed: Int64 | None = None
    slo: SloBody | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
    request_id: Identifier | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def shared_fields(body: ApiBody) -> Json:
    """Return the fields of `ApiBody` that are given, as a chat's."""
    return body.model_dump(include=set(ApiBody.model_fields), exclude_none=True)


def given(fields: Mapping[str, object]) -> Json:
    """Return the fields that are not null."""
    return {name: value for name, value in fields.items() if value is not None}


def as_object(value: object, param: str) -> Mapping[str, Any]:
    """Return `value`. Raises InvalidValue unless it is an object."""
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{param} must be an object", param)
    return value


def as_list(value: object, param: str) -> list[Any]:
    """Return `value`. Raises InvalidValue unless it is a list with something in it."""
    if not isinstance(value, list) or not value:
        raise InvalidValue(f"{param} must be a non-empty list", param)
    return value


def check_size(items: list[Any], param: str) -> None:
    """Raise InvalidValue for more messages, or parts of messages, than are worth looking at.

    Parts may have parts: results of tools are lists of texts.
    """
    if len(items) <= MAX_MESSAGES:
        parts = [part for item in items for part in _parts(item)]
        if len(parts) <= MAX_MESSAGES and sum(len(_parts(part)) for part in parts) <= MAX_MESSAGES:
            return
    raise InvalidValue(f"at most {MAX_MESSAGES} messages, and parts of messages", param)


def _parts(item: object) -> list[Any]:
    """Return the list of parts in a message, a part or an item of `input`; empty without one."""
    if not isinstance(item, Mapping):
        return []
    values = (item.get(name) for name in ("content", "output", "summary"))
    return [part for value in values if isinstance(value, list) for part in value]


def text_of(value: object, param: str, kinds: frozenset[str]) -> str:
    """Return a text, or the texts of a list of parts, a line each.

    kinds: the types of parts with a text. Raises InvalidValue, or UnsupportedParameter for a part
    of another type.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > MAX_MESSAGES:
        most = f"a list of at most {MAX_MESSAGES} text parts"
        raise InvalidValue(f"{param} must be a string or {most}", param)
    return "\n".join(_text(part, f"{param}[{i}]", kinds) for i, part in enumerate(value))


def _text(value: object, param: str, kinds: frozenset[str]) -> str:
    part = as_object(value, param)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise unsupported(kind, param)
    if not isinstance(part.get("text"), str):
        raise InvalidValue(f"{param}.text must be a string", f"{param}.text")
    return str(part["text"])


def unsupported(kind: object, param: str) -> InvalidValue | UnsupportedParameter:
    """Return the error of an object whose type is unknown, or is not supported here."""
    if not isinstance(kind, str):
        return InvalidValue(f"{param}.type must be a string", f"{param}.type")
    message = f"{param}: {plain(kind)} is not supported by this server"
    return UnsupportedParameter(message, f"{param}.type")


def flag(value: Mapping[str, Any], name: str, param: str) -> bool:
    """Return a field of an object at path `param`, False if absent. Raises InvalidValue."""
    found = value.get(name)
    if found is not None and not isinstance(found, bool):
        raise InvalidValue(f"{param}.{name} must be true or false", f"{param}.{name}")
    return bool(found)
