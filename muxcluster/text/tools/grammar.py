"""The grammar of an output whose tool calls must match the tools' schemas."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from muxcluster.constraints.grammars import Tag, is_text, messages, tagged
from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.clip import plain
from muxcluster.text.reasoning import PromptEnd
from muxcluster.text.tools import harmony
from muxcluster.text.tools.asked import AskedTools, Tool
from muxcluster.text.tools.formats import HARMONY, ToolFormat

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# of the arguments' schema, where each argument is written for itself: what else it may say
_KEYS_OF_FIELDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
) | {"title", "description", "default", "examples", "$comment"}
_TEXT_KEYS = frozenset({"minLength", "maxLength", "pattern", "format"})
_BAD_NAME = re.compile(r"[>\n]|^\s|\s$|^$")
# between the end of reasoning and the first call, as chat templates of models that think write it
_GAP = "\n\n"


def call_grammar(form: ToolFormat, asked: AskedTools, *, is_after_reasoning: bool) -> str:
    """Return the grammar of an output with calls, for tools that have one (`has_grammar`).

    Where a call is needed, the output is nothing but calls, all of which match their schemas.
    Otherwise text is free, and calls of strict tools match theirs. is_after_reasoning: the grammar
    begins where the model has just ended its reasoning. Raises InvalidValue for a schema that
    cannot be enforced in this format.
    """
    written = form.written
    gap = _GAP if is_after_reasoning and asked.needs_call else ""
    return tagged(
        [
            Tag(written.begin_of(tool.name), _schema(tool, asked, form), written.end, written.field)
            for tool in asked.callable
        ],
        needs_one=asked.needs_call,
        may_repeat=asked.may_repeat and form.may_repeat,
        text_before=not asked.needs_call,
        separator=written.separator,
        prefix=gap + written.prefix,
        suffix=written.suffix,
        trigger="" if asked.needs_call else form.trigger,
    )


def call_or_json_grammar(form: ToolFormat, asked: AskedTools, json_grammar: str) -> str | None:
    """Return the grammar of an output that is one call, or JSON as `json_grammar` has it.

    None if that is a grammar of another kind than a JSON schema's.
    """
    (inner,) = json.loads(json_grammar).get("grammars", [{}])
    if "json_schema" not in inner:
        return None
    written = form.written
    calls = [
        Tag(
            written.prefix + written.begin_of(tool.name),
            _schema(tool, asked, form),
            written.end + written.suffix,
            written.field,
        )
        for tool in asked.callable
    ]
    answer = Tag("", inner["json_schema"], "")
    return tagged([*calls, answer], needs_one=True, may_repeat=False, text_before=False)


def channel_grammar(
    asked: AskedTools, json_grammar: str | None, prompt_end: PromptEnd
) -> str | None:
    """Return the grammar of an output in the harmony format: reasoning, then a call or an answer.

    json_grammar: of the answer; None: it is any text. Where a call is needed there is no answer.
    Returns None if the grammar of the answer is of another kind than a JSON schema's. Raises
    InvalidValue for a prompt that has begun the answer where a call is needed.
    """
    answer = None
    if json_grammar is not None:
        (inner,) = json.loads(json_grammar).get("grammars", [{}])
        if "json_schema" not in inner:
            return None
        answer = inner["json_schema"]
    if prompt_end is PromptEnd.AFTER:
        raise InvalidValue(
            "the prompt ends amid an answer or with a closed message: "
            "there the form of calls cannot be enforced",
            "tools",
        )
    last: list[tuple[Sequence[str], Any]] = [
        (harmony.call_headers(tool.name), _schema(tool, asked, HARMONY)) for tool in asked.callable
    ]
    if not asked.needs_call:
        last.append(((harmony.ANSWER,), answer))
    return messages(
        last,
        earlier=harmony.EARLIER,
        between=harmony.END + harmony.START + harmony.AUTHOR,
        begins_within=prompt_end is PromptEnd.WITHIN,
    )


def _schema(tool: Tool, asked: AskedTools, form: ToolFormat) -> Mapping[str, Any]:
    """Return what a tool's arguments must match. Raises InvalidValue."""
    if not (asked.needs_call or tool.is_strict):
        return _ANY_OBJECT
    if form.written.field is not None:
        _check_fields(tool.schema, f"tools[{asked.tools.index(tool)}].function.parameters")
    return tool.schema


def _check_fields(schema: Mapping[str, Any], param: str) -> None:
    """Raise InvalidValue for what cannot be enforced where texts stand without quotes."""
    unknown = sorted(schema.keys() - _KEYS_OF_FIELDS)
    if unknown:
        raise _refused(f"{param}.{unknown[0]}")
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in properties]
    if missing:
        raise InvalidValue(f"{param}.required: {plain(missing[0])} is no property", param)
    for name, each in properties.items():
        if _BAD_NAME.search(name):
            raise _refused(f"{param}.properties: the name {plain(name)}")
        keys = sorted(_TEXT_KEYS & each.keys()) if is_text(each) else []
        if keys:
            raise _refused(f"{param}.properties.{plain(name)}.{keys[0]}")


def _refused(place: str) -> InvalidValue:
    message = f"{place} cannot be enforced in the form in which this model writes arguments"
    return InvalidValue(message, "tools")


def text_arguments(asked: AskedTools) -> dict[str, frozenset[str]]:
    """Return, by tool, the arguments that are texts whatever they look like."""
    return {
        tool.name: frozenset(
            name for name, each in tool.schema.get("properties", {}).items() if is_text(each)
        )
        for tool in asked.callable
    }
