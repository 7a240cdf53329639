"""The grammar of an output whose tool calls must match the tools' schemas."""

import json
from collections.abc import Mapping
from typing import Any

from muxcluster.constraints.grammars import Tag, tagged
from muxcluster.text.tools.asked import AskedTools, Tool
from muxcluster.text.tools.formats import ToolFormat

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# between the end of reasoning and the first call, as chat templates of models that think write it
_GAP = "\n\n"


def call_grammar(form: ToolFormat, asked: AskedTools, *, is_after_reasoning: bool) -> str:
    """Return the grammar of an output with calls, for tools that have one (`has_grammar`).

    Where a call is needed, the output is nothing but calls, all of which match their schemas.
    Otherwise text is free, and calls of strict tools match theirs. is_after_reasoning: the grammar
    begins where the model has just ended its reasoning.
    """
    written = form.written
    gap = _GAP if is_after_reasoning and asked.needs_call else ""
    return tagged(
        [
            Tag(written.begin_of(tool.name), _schema(tool, asked), written.end)
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
            _schema(tool, asked),
            written.end + written.suffix,
        )
        for tool in asked.callable
    ]
    answer = Tag("", inner["json_schema"], "")
    return tagged([*calls, answer], needs_one=True, may_repeat=False, text_before=False)


def _schema(tool: Tool, asked: AskedTools) -> Mapping[str, Any]:
    return tool.schema if asked.needs_call or tool.is_strict else _ANY_OBJECT
