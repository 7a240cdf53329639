"""Checks the shapes of prompts and chat messages, before tokenising."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import plain
from muxcluster.text.validation.images import IMAGE_PART, ImageParts
from muxcluster.text.validation.tool_messages import tool_fields

MAX_PROMPTS = 1024
# and parts of messages: looking at 800,000 that fit a body held up the event loop for seconds
MAX_MESSAGES = 16_384
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
REFUSED_FIELDS = ("function_call", "audio")


def split_prompts(
    value: object, param: str = "prompt", most: int = MAX_PROMPTS
) -> list[str | list[int]]:
    """Return OpenAI's four shapes of the field `param` as a list of texts or token id lists.

    Raises InvalidValue for any other shape, for empty lists and for more than `most`.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidValue(
            f"{param} must be a string, a list of strings, token ids, or a list of token id lists",
            param,
        )
    if type(value[0]) is int:
        return [_int_list(value, param)]
    if len(value) > most:
        raise InvalidValue(f"at most {most} {param}s in one request", param)
    if isinstance(value[0], str):
        return [_text(item, f"{param}[{i}]") for i, item in enumerate(value)]
    return [_int_list(item, f"{param}[{i}]") for i, item in enumerate(value)]


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"{param} must be a string like the first", param)
    return value


def _int_list(value: object, param: str) -> list[int]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise InvalidValue(f"{param} must be a list of token ids", param)
    return value


def token_ids(value: object, vocab_size: int, param: str) -> NDArray[np.int32]:
    """Return token ids as int32 [n]. Raises InvalidValue outside [0, vocab_size)."""
    ids = _int_list(value, param)
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < vocab_size:
            shown = plain(f"{token}")
            raise InvalidValue(
                f"{param}: token id {shown} is outside the vocabulary of {vocab_size}", param
            )
    return np.array(ids, dtype=np.int32)


def chat_messages(value: object, images: ImageParts | None = None) -> list[dict[str, Any]]:
    """Return `messages` as chat templates read them.

    Text parts are joined, `developer` is replaced by `system`, arguments of tool calls are objects,
    and reasoning is in `reasoning_content`. images: takes the images out of messages of the user,
    whose content is then a list of parts; None: there may be none. Raises InvalidValue or
    MissingParameter for wrong shapes and for too many, UnsupportedParameter for other parts and for
    functions from before tools.
    """
    if not isinstance(value, list) or not value:
        raise InvalidValue("messages must be a non-empty list", "messages")
    if len(value) > MAX_MESSAGES or sum(map(_num_parts, value)) > MAX_MESSAGES:
        raise InvalidValue(f"at most {MAX_MESSAGES} messages, and parts of messages", "messages")
    return [_message(item, f"messages[{i}]", images) for i, item in enumerate(value)]


def _message(value: object, param: str, images: ImageParts | None) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{param} must be an object", param)
    for name in REFUSED_FIELDS:
        if value.get(name):
            raise UnsupportedParameter(f"{param}.{name} is not supported", f"{param}.{name}")
    role = value.get("role")
    if role is None:
        raise MissingParameter(f"missing required field {param}.role", f"{param}.role")
    if not isinstance(role, str):
        raise InvalidValue(f"{param}.role must be a string", f"{param}.role")
    if role == "function":
        raise UnsupportedParameter("role function is not supported: use tool", f"{param}.role")
    if role not in ROLES:
        raise InvalidValue(f"{param}.role must be one of {sorted(ROLES)}", f"{param}.role")
    message = {name: item for name, item in value.items() if item is not None}
    message["role"] = "system" if role == "developer" else role
    message.update(tool_fields(message, param))
    # templates look whether there is a key
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    has_text = value.get("content") is not None or "tool_calls" not in message
    of_user = images if role == "user" else None
    content = _content(value.get("content"), f"{param}.content", of_user) if has_text else ""
    message["content"] = content
    message.update(_reasoning(message, param))
    message.pop("reasoning", None)
    return message


def _reasoning(message: Mapping[str, Any], param: str) -> dict[str, str]:
    """Return the reasoning of an earlier answer, in the field that templates read."""
    found = {}
    for name in ("reasoning", "reasoning_content"):
        text = message.get(name)
        if text is not None and not isinstance(text, str):
            raise InvalidValue(f"{param}.{name} must be a string", f"{param}.{name}")
        if text is not None:
            found["reasoning_content"] = text
    return found


def _num_parts(message: object) -> int:
    content = message.get("content") if isinstance(message, Mapping) else None
    return len(content) if isinstance(content, list) else 0


def _content(value: object, param: str, images: ImageParts | None) -> str | list[dict[str, str]]:
    """Return the text of a message, or its parts if some are images."""
    if isinstance(value, str):
        return value
    if value is None:
        raise MissingParameter(f"missing required field {param}", param)
    if not isinstance(value, list) or not value:
        raise InvalidValue(f"{param} must be a string or a list of text parts", param)
    parts = [_part(item, f"{param}[{i}]", images) for i, item in enumerate(value)]
    texts = [part["text"] for part in parts if "text" in part]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _part(value: object, param: str, images: ImageParts | None) -> dict[str, str]:
    """Return a part as chat templates read it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise InvalidValue(f"{param} must be an object with a type", param)
    if value["type"] == IMAGE_PART and images is not None:
        return images.take(value, param)
    if value["type"] != "text":
        message = f"{plain(value['type'])} parts are not supported"
        if value["type"] == IMAGE_PART:
            message += ": images are read in messages of the user, and by models that take them"
        raise UnsupportedParameter(message, f"{param}.type")
    if not isinstance(value.get("text"), str):
        raise InvalidValue(f"{param}.text must be a string", f"{param}.text")
    return {"type": "text", "text": value["text"]}
