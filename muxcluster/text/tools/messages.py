"""Messages for models whose chat template knows no tools: these are described in plain text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from muxcluster.text.tools.asked import AskedTools

_CALLING = """\
You can call the functions below. To call one, answer with nothing but a JSON object:
{"name": "the function's name", "arguments": {"an argument's name": "its value"}}"""
_SEVERAL = "To call several, write one such object a line."
_RESULTS = "The results come in the next message. Answer in plain text if no call is needed."


def described(
    messages: Sequence[Mapping[str, Any]], asked: AskedTools | None
) -> list[dict[str, Any]]:
    """Return `messages` with the tools in a system message, and calls and results as text.

    Neighbouring results become one message of the user, as most templates want roles in turn.
    """
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
    }
    told: list[dict[str, Any]] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            # at once: result by result would copy what there is for each of thousands
            results = "\n\n".join(_result(message, names) for message in group)
            told.append({"role": "user", "content": results})
        else:
            told += map(_with_calls_as_text, group)
    return told if asked is None else _with_tools(told, asked)


def with_thinking(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with earlier reasoning where templates of the harmony format look for it.

    Not where an answer has text and calls: such a template has one place for both.
    """
    told = []
    for message in messages:
        has_place = not (message.get("tool_calls") and message["content"])
        reasoning = message.get("reasoning_content") if has_place else None
        told.append({**message, **({"thinking": reasoning} if reasoning else {})})
    return told


def _result(message: Mapping[str, Any], names: Mapping[str, str]) -> str:
    name = names.get(message["tool_call_id"], "the function")
    return f"Result of {name}:\n{message['content']}"


def _with_calls_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    told = dict(message)
    calls = told.pop("tool_calls", ())
    if calls:
        told["content"] = "\n".join(filter(None, [message["content"], *_lines(calls)]))
    return told


def _lines(calls: Iterable[Mapping[str, Any]]) -> list[str]:
    shown = (call["function"] for call in calls)
    return [_json({"name": each["name"], "arguments": each["arguments"]}) for each in shown]


def _with_tools(told: list[dict[str, Any]], asked: AskedTools) -> list[dict[str, Any]]:
    functions = [_json(shown["function"]) for shown in asked.shown]
    calling = [_CALLING, *([_SEVERAL] if asked.may_repeat else []), _RESULTS]
    text = "\n".join([*calling, "", *functions])
    if told[0]["role"] != "system":
        return [{"role": "system", "content": text}, *told]
    first = {**told[0], "content": f"{told[0]['content']}\n\n{text}"}
    return [first, *told[1:]]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
