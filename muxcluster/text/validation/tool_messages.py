"""Checks the calls and results of tools in chat messages."""

import json
from collections.abc import Mapping
from typing import Any

from muxcluster.core.errors import InvalidValue, MissingParameter, UnsupportedParameter
from muxcluster.core.inputs.clip import plain

MAX_CALLS = 128  # of one message


def tool_fields(message: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Return the fields of a message that are about tools, as chat templates read them.

    param: the path of the message. Raises InvalidValue, MissingParameter, UnsupportedParameter.
    """
    role, calls = message["role"], message.get("tool_calls")
    call_id = message.get("tool_call_id")
    if role == "tool":
        if call_id is None:
            raise MissingParameter(
                f"missing required field {param}.tool_call_id", f"{param}.tool_call_id"
            )
        if not isinstance(call_id, str):
            raise InvalidValue(f"{param}.tool_call_id must be a string", f"{param}.tool_call_id")
        return {}
    if call_id is not None:
        message_of = f"{param}.tool_call_id belongs to messages of role tool"
        raise InvalidValue(message_of, f"{param}.tool_call_id")
    if not calls:
        return {}
    if role != "assistant":
        message_of = f"{param}.tool_calls belongs to messages of role assistant"
        raise InvalidValue(message_of, f"{param}.tool_calls")
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise InvalidValue(
            f"{param}.tool_calls must be a list of at most {MAX_CALLS} calls", f"{param}.tool_calls"
        )
    return {"tool_calls": [_call(c, f"{param}.tool_calls[{i}]") for i, c in enumerate(calls)]}


def _call(value: object, param: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{param} must be an object", param)
    kind = value.get("type", "function")
    if kind != "function":
        message = f"calls of type {plain(f'{kind}')} are not supported"
        raise UnsupportedParameter(message, f"{param}.type")
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise InvalidValue(f"{param}.function must be an object", f"{param}.function")
    return {
        "id": text_field(value, "id", param),
        "type": "function",
        "function": {
            "name": text_field(function, "name", f"{param}.function"),
            "arguments": _arguments(function, f"{param}.function"),
        },
    }


def text_field(value: Mapping[str, Any], name: str, param: str) -> str:
    """Return a field of an object at path `param`. Raises MissingParameter, InvalidValue."""
    text = value.get(name)
    if text is None:
        raise MissingParameter(f"missing required field {param}.{name}", f"{param}.{name}")
    if not isinstance(text, str):
        raise InvalidValue(f"{param}.{name} must be a string", f"{param}.{name}")
    return text


def _arguments(function: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Return the arguments as an object: clients send its JSON, templates want the object."""
    param = f"{param}.arguments"
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, dict):
        raise InvalidValue(f"{param} must be the JSON text of an object", param)
    return given
