"""Content, reasoning and tool calls of a chat answer in OpenAI's format."""

from collections.abc import Sequence
from typing import Any

from muxcluster.core.events import FinishReason
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.text.tools.parts import (
    Arguments,
    CallBegun,
    CallBroken,
    Content,
    Part,
    Reasoning,
)

Json = dict[str, Any]


def part_delta(part: Part) -> Json:
    """Return the `delta` of a streamed part; empty for one that a stream does not show."""
    match part:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return _reasoning(text)
        case CallBegun(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case CallBroken():
            # what was sent cannot be taken back; the rest of its text follows as content
            return {}


def whole_message(deltas: Sequence[ChoiceDelta]) -> Json:
    """Return the `message` of a whole choice.

    A broken call is content, unless the output ended within it at its length limit: then it is
    there as far as it goes, as in a stream.
    """
    is_cut = deltas[-1].finish_reason == FinishReason.LENGTH.value
    contents: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, Json] = {}
    for part in _parts(deltas):
        match part:
            case Content(text):
                contents.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegun(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"id": call_id, "type": "function", "function": function}
            case Arguments(index, text):
                calls[index]["function"]["arguments"] += text
            case CallBroken(index, raw, at_end) if not (at_end and is_cut):
                del calls[index]
                contents.append(raw)
    message: Json = {"role": "assistant", "content": "".join(contents), "refusal": None}
    if reasoning:
        message |= _reasoning("".join(reasoning))
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = list(calls.values())
    return message


def _parts(deltas: Sequence[ChoiceDelta]) -> list[Part]:
    return [part for delta in deltas for part in delta.parts or (Content(delta.text),)]


def _reasoning(text: str) -> Json:
    """Return the reasoning under both names: vLLM's and SGLang's old one, and vLLM's new one."""
    return {"reasoning_content": text, "reasoning": text}
