"""The grammar of an output whose tool calls must match the tools' schemas."""

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


def _schema(tool: Tool, asked: AskedTools) -> Mapping[str, Any]:
    return tool.schema if asked.needs_call or tool.is_strict else _ANY_OBJECT
