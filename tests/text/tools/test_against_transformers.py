"""Our parser against that of transformers, where both can read an output."""

import json

from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from muxcluster.text.reasoning import KNOWN_TAGS
from muxcluster.text.tools.formats import HERMES
from muxcluster.text.tools.output import OutputRules
from tests.text.tools.test_output import ARGUMENTS, NAMES, divided

TEMPLATE = {
    "start_anchor": "<start>",
    "defaults": {"role": "assistant"},
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
        },
    },
}
RULES = OutputRules(tags=KNOWN_TAGS[0], format=HERMES, names=NAMES)
# without the marks' first character, and without space that both strip
WORDS = st.text('abc é{}[]":,.', max_size=20).map(str.strip)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), max_size=3)


@given(reasoning=WORDS, content=WORDS, calls=CALLS)
def test_reasoning_content_and_calls(reasoning, content, calls) -> None:
    written = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    ]
    # nothing between the calls: theirs keeps the last of several contents
    text = f"<think>\n{reasoning}\n</think>\n\n{content}\n" + "".join(written)
    ours = divided(RULES, text)
    theirs = parse_response(text, TEMPLATE, prefix="<start>")
    assert ours.reasoning == theirs.get("thinking", "")
    assert ours.content.strip() == theirs.get("content", "").strip()
    calls_read = [{"name": name, "arguments": json.loads(each)} for name, each in ours.calls]
    assert calls_read == list(theirs.get("tool_calls", []))
