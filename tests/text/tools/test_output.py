"""Outputs divided into content, reasoning and tool calls."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.text.reasoning import KNOWN_TAGS, PromptEnd
from muxcluster.text.tools import formats
from muxcluster.text.tools.output import OutputParser, OutputRules
from muxcluster.text.tools.parts import (
    Arguments,
    CallBegun,
    CallBroken,
    Content,
    Part,
    Reasoning,
)

NAMES = frozenset({"get_weather", "add"})
THINK = KNOWN_TAGS[0]
FORMATS = {
    "hermes": formats.HERMES,
    "llama3": formats.LLAMA3,
    "mistral": formats.MISTRAL,
    "mistral-named": formats.MISTRAL_NAMED,
    "deepseek": formats.DEEPSEEK,
    "deepseek-named": formats.DEEPSEEK_NAMED,
    "json": formats.JSON,
}


@dataclass
class Divided:
    """An output put together from its parts, as a client would."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments
    broken: list[tuple[int, str, bool]] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "Divided":
        found = cls()
        for part in parts:
            match part:
                case Content(text):
                    found.content += text
                case Reasoning(text):
                    found.reasoning += text
                case CallBegun(index, _, name):
                    assert index == len(found.calls)
                    found.calls.append((name, ""))
                case Arguments(index, text):
                    assert index == len(found.calls) - 1
                    assert text
                    found.calls[index] = (found.calls[index][0], found.calls[index][1] + text)
                case CallBroken(index, raw, at_end):
                    found.broken.append((index, raw, at_end))
        return found


def parts_of(rules: OutputRules, pieces: Sequence[str]) -> list[Part]:
    ids = count()
    parser = OutputParser(rules, lambda: f"id{next(ids)}")
    parts = [part for piece in pieces for part in parser.push(piece)]
    return parts + parser.finish()


def divided(rules: OutputRules, *pieces: str) -> Divided:
    return Divided.of(parts_of(rules, pieces))


def with_tools(name: str, **rules) -> OutputRules:
    return OutputRules(format=FORMATS[name], names=NAMES, **rules)


def written(name: str, calls: Sequence[tuple[str, str]]) -> str:
    """The calls as the format's models write them."""
    how = FORMATS[name].written
    texts = [how.begin_of(tool) + arguments + how.end for tool, arguments in calls]
    return how.prefix + how.separator.join(texts) + how.suffix


CALLS = [("get_weather", '{"city": "Paris", "days": [1, 2.5e3]}'), ("add", "{}")]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_read_as_they_are_written(name: str) -> None:
    assert divided(with_tools(name), written(name, CALLS)) == Divided(calls=CALLS)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.openers])
def test_content_may_stand_before_marked_calls(name: str) -> None:
    if name == "llama3":
        text = 'Let me see.\n<|python_tag|>{"name": "add", "parameters": {}}'
        calls = [("add", "{}")]
    else:
        text, calls = "Let me see.\n\n" + written(name, CALLS), CALLS
    assert divided(with_tools(name), text) == Divided("Let me see.", calls=calls)


def test_arguments_come_as_they_are_written() -> None:
    parser = OutputParser(with_tools("hermes"), lambda: "id")
    assert parser.push('Hm <tool_call>\n{"name": "add", "argu') == [Content("Hm")]
    assert parser.push('ments": {"a"') == [CallBegun(0, "id", "add"), Arguments(0, '{"a"')]
    assert parser.push(": 1") == [Arguments(0, ": 1")]
    assert parser.push("}}\n</tool") == [Arguments(0, "}")]
    assert parser.num_calls == 1
    assert parser.push("_call>") == parser.finish() == []


VARIANTS = {
    "hermes": [
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n',
        '<tool_call>{"name":"add","parameters":{"a": 1}} </tool_call>\n',
    ],
    "llama3": [
        '{"type": "function", "name": "add", "parameters": {"a": 1}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
        ' {"name": "add", "arguments": {"a": 1}} ',
    ],
    "mistral": [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
        '[TOOL_CALLS]{"name": "add", "arguments": {"a": 1}}',
        '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}',
        '[TOOL_CALLS]add{"a": 1}',
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1}\n```',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>',
    ],
    "json": [
        '```json\n{"name": "add", "arguments": {"a": 1}}\n```',
        '[{"name": "add", "arguments": {"a": 1}}]',
        '\n{"name": "add", "parameters": {"a": 1}}',
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in VARIANTS.items() for text in texts]
)
def test_variants_that_models_write(name: str, text: str) -> None:
    assert divided(with_tools(name), text) == Divided(calls=[("add", '{"a": 1}')])


def test_a_call_without_arguments_has_empty_ones() -> None:
    assert divided(with_tools("json"), '{"name": "add"}').calls == [("add", "{}")]


NO_CALLS = {
    "hermes": [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "a"}</tool_call>',
        '<tool_call>{"name": "add", "function": {}}</tool_call>',
        "<tool_call>add(1)</tool_call>",
        '<tool_call>{"name": "ad',
        "<tool_call",
        "a < b and <b> or <tool_calls>",
    ],
    "llama3": ['{"answer": 1}', "{}", '{"name": "x"}', '<|python_tag|>add.call(a="b")', " { no"],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS]unknown[ARGS]{}", "[1, 2]"],
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>unknown\n```json\n{}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + "long" * 100,
    ],
    "json": ["```python\nprint(1)\n```", '["a"]', "```json\n[1]\n```", '{"a": {"name": "add"}}'],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in NO_CALLS.items() for text in texts]
)
@pytest.mark.parametrize("around", ["", "Well. "])
def test_what_is_no_call_stays_content(name: str, text: str, around: str) -> None:
    assert divided(with_tools(name), around + text + around) == Divided(around + text + around)


def test_a_call_may_follow_a_malformed_one() -> None:
    text = '<tool_call>oops <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert divided(with_tools("hermes"), text) == Divided("<tool_call>oops", calls=[("add", "{}")])


def test_arguments_that_break_are_told() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call> end'
    found = divided(with_tools("hermes"), text)
    raw = '<tool_call>{"name": "add", "arguments": {"a": '
    assert found.broken == [(0, raw, False)]
    assert raw + found.content == text


def test_an_output_that_ends_within_a_call_is_told() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1'
    found = divided(with_tools("hermes"), text)
    assert found == Divided(calls=[("add", '{"a": 1')], broken=[(0, text, True)])


def test_one_call_is_enough_where_no_second_is_wanted() -> None:
    parser = OutputParser(with_tools("hermes", may_repeat=False))
    parts = parser.push(written("hermes", CALLS))
    assert Divided.of(parts).calls == CALLS[:1]
    assert parser.is_over
    assert parser.push("more") == parser.finish() == []


def test_content_after_a_call_keeps_what_stands_between() -> None:
    text = 'a\n<tool_call>{"name": "add", "arguments": {}}</tool_call>\nb\n'
    assert divided(with_tools("hermes"), text) == Divided("a\n\nb", calls=[("add", "{}")])


@pytest.mark.parametrize("tags", KNOWN_TAGS, ids=lambda tags: tags.name)
@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning(tags, is_open: bool) -> None:
    end = PromptEnd.WITHIN if is_open else PromptEnd.BEFORE
    rules = OutputRules(tags=tags, prompt_end=end)
    begin = "" if is_open else f"\n{tags.begin}"
    text = f"{begin}\nFirst,\n\nthen.\n{tags.end}\n\nYes. \n"
    assert divided(rules, text) == Divided("Yes. \n", "First,\n\nthen.")


def test_reasoning_that_does_not_end() -> None:
    rules = OutputRules(tags=THINK)
    assert divided(rules, "<think>Well</thi") == Divided(reasoning="Well</thi")


@pytest.mark.parametrize("text", ["Hello", " \n Hi", "<thing>", "a <think>b</think>", "<thi", " "])
def test_an_output_without_reasoning_is_content(text: str) -> None:
    assert divided(OutputRules(tags=THINK), text) == Divided(text)


def test_a_prompt_that_closed_the_reasoning() -> None:
    rules = OutputRules(tags=THINK, prompt_end=PromptEnd.AFTER)
    assert divided(rules, "<think>a</think>") == Divided("<think>a</think>")


def test_reasoning_before_calls() -> None:
    rules = with_tools("hermes", tags=THINK)
    text = "<think>\nHm {\n</think>\n\n" + written("hermes", CALLS)
    assert divided(rules, text) == Divided("", "Hm {", CALLS)


def test_reasoning_that_is_not_wanted() -> None:
    rules = OutputRules(tags=THINK, shows_reasoning=False)
    parser = OutputParser(rules)
    assert parser.push("<think>Hm") == []
    assert parser.is_reasoning
    assert parser.push("</think>\n\nYes") == [Content("Yes")]
    assert not parser.is_reasoning


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3)


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_any_arguments_in_any_pieces(name, calls, is_ascii: bool, data) -> None:
    texts = [(tool, json.dumps(value, ensure_ascii=is_ascii)) for tool, value in calls]
    text = written(name, texts)
    found = divided(with_tools(name), *cut(data, text))
    assert found == Divided(calls=texts)


def cut(data: st.DataObject, text: str) -> list[str]:
    """`text` in pieces."""
    ends = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


FRAGMENTS = [
    *sorted({mark for form in FORMATS.values() for mark in form.marks}),
    *(text for tags in KNOWN_TAGS for text in (tags.begin, tags.end)),
    '{"name": "add", "arguments": {"a": [1, "}"]}}',
    '{"name": "add"',
    '"arguments": {"b": ',
    '"parameters":',
    "add",
    "get_weather",
    "function",
    "```json",
    "```",
    *'{}[]:,;"\\ \nx1-',
    "true",
    "  \n",
    "text",
]
RULES = st.builds(
    OutputRules,
    tags=st.sampled_from([None, *KNOWN_TAGS]),
    prompt_end=st.sampled_from(list(PromptEnd)),
    format=st.sampled_from([None, *FORMATS.values()]),
    names=st.just(NAMES),
    may_repeat=st.booleans(),
)


@given(RULES, st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join), st.data())
def test_where_the_text_is_cut_makes_no_difference(rules: OutputRules, text: str, data) -> None:
    whole = divided(rules, text)
    assert divided(rules, *text) == whole
    assert divided(rules, *cut(data, text)) == whole


@given(RULES, st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join))
def test_calls_are_whole_and_the_rest_is_content(rules: OutputRules, text: str) -> None:
    found = divided(rules, text)
    broken = {index for index, _, _ in found.broken}
    for index, (name, arguments) in enumerate(found.calls):
        assert name in NAMES
        if index not in broken:
            assert isinstance(json.loads(arguments), dict)
    if not found.calls and not found.reasoning:
        # at most the tags and the space around an empty reasoning are gone
        assert text.endswith(found.content)
        assert rules.tags is not None or found.content == text


def test_what_breaks_and_what_follows_is_all_the_text() -> None:
    """A call that breaks, at any place, leaves its text to `raw` and the content."""
    whole = '<tool_call>{"name": "add", "arguments": {"a": [1, "x"], "b": tru'
    for end in range(len(whole) + 1):
        text = whole[:end] + "\x00 and more"
        found = divided(with_tools("hermes"), text)
        assert "".join(raw for _, raw, _ in found.broken) + found.content == text
