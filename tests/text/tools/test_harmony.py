"""The harmony format of gpt-oss: messages with channels, read, written and enforced."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.constraints.grammars import json_schema, regex
from muxcluster.constraints.matching import TokenMasks
from muxcluster.constraints.vocabulary import MaskModel, load_vocabulary
from muxcluster.core.errors import InvalidValue
from muxcluster.text.reasoning import HARMONY as TAGS
from muxcluster.text.reasoning import PromptEnd
from muxcluster.text.template import ChatTemplate, RenderOptions
from muxcluster.text.tokenizer import Tokenizer
from muxcluster.text.tools.formats import HARMONY, tools_of
from muxcluster.text.tools.grammar import channel_grammar
from muxcluster.text.tools.harmony import MARKS, call_headers
from muxcluster.text.tools.messages import with_thinking
from muxcluster.text.tools.output import OutputParser, OutputRules, new_call_id
from muxcluster.text.tools.parts import Arguments, CallBegun, Content, Reasoning
from muxcluster.text.validation.prompts import chat_messages
from tests.http.fakes import EOS
from tests.http.tool_models import make_model
from tests.text.tools import templates
from tests.text.tools.test_grammar import accepted, asked, check_calls, sampled
from tests.text.tools.test_output import Divided, cut, divided

RULES = OutputRules(
    tags=TAGS, format=HARMONY, names=frozenset({"get_weather", "add"}), has_channels=True
)
THOUGHT = "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is warm."
ARGUMENTS = '{"city": "Rome"}'
OLD_CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}"
NEW_CALL = f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}"


def test_reasoning_and_answer() -> None:
    assert divided(RULES, THOUGHT + FINAL) == Divided("It is warm.", "The user asks.")
    assert divided(RULES, FINAL + "<|return|>") == Divided("It is warm.")


@pytest.mark.parametrize("call", [OLD_CALL, NEW_CALL])
@pytest.mark.parametrize("end", ["", "<|call|>"])
def test_a_call(call: str, end: str) -> None:
    calls = [("get_weather", ARGUMENTS)]
    assert divided(RULES, THOUGHT + call + end) == Divided("", "The user asks.", calls)
    preamble = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"
    found = divided(RULES, THOUGHT + preamble + call + end)
    assert found == Divided("Let me look.", "The user asks.", calls)


def test_parts_come_as_they_are_written() -> None:
    parser = OutputParser(RULES, lambda: "id")
    assert parser.push("<|channel|>analysis<|message|>") == []
    assert parser.is_reasoning
    assert parser.push("Hm") == [Reasoning("Hm")]
    assert parser.push("<|end|><|start|>assistant") == []
    assert not parser.is_reasoning
    assert parser.push(" to=functions.add<|channel|>commentary json<|message|>") == []
    assert parser.push('{"a"') == [CallBegun(0, "id", "add"), Arguments(0, '{"a"')]
    assert parser.push(": 1}") == [Arguments(0, ": 1}")]
    assert parser.num_calls == 1
    assert parser.finish() == []


def test_texts_of_several_messages_of_a_kind() -> None:
    again = THOUGHT.replace("The user asks.", "So.")
    comment = "<|channel|>commentary<|message|>Well.<|end|><|start|>assistant"
    found = divided(RULES, THOUGHT + again + comment + FINAL)
    assert found == Divided("Well.\nIt is warm.", "The user asks.\nSo.")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Hello", "Hello"),
        (" to=5", " to=5"),
        ("<|channel|>commentary to=python code<|message|>1+1",) * 2,
        ("<|channel|>commentary to=functions.unknown json<|message|>{}",) * 2,
        (" to=functions.add<|channel|>commentary json<|message|>[1]",) * 2,
        ("<|channel|>final<|mess", ""),
        ("<|channel|>", ""),
        (" to=functions.add<|channel|>comm", ""),
        ("<|channel|>" + "long" * 100, "<|channel|>" + "long" * 100),
    ],
)
def test_what_is_no_message_is_content(text: str, content: str) -> None:
    """Apart from a header that is cut, which is not yet text."""
    assert divided(RULES, text) == Divided(content)


def test_arguments_that_break_are_told() -> None:
    found = divided(RULES, NEW_CALL.replace('"Rome"', "Rome") + "<|call|>")
    (broken,) = found.broken
    assert broken[1] + found.content == NEW_CALL.replace('"Rome"', "Rome")


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (OutputRules(has_channels=True), Divided("The user asks.\nIt is warm.")),
        (OutputRules(tags=TAGS, shows_reasoning=False, has_channels=True), Divided("It is warm.")),
    ],
)
def test_reasoning_that_is_not_shown_apart(rules: OutputRules, expected: Divided) -> None:
    assert divided(rules, THOUGHT + FINAL) == expected


def test_calls_that_are_not_wanted_are_content() -> None:
    rules = OutputRules(tags=TAGS, has_channels=True)
    assert divided(rules, THOUGHT + OLD_CALL) == Divided(OLD_CALL, "The user asks.")


def test_where_the_prompt_leaves_the_model() -> None:
    within = OutputRules(tags=TAGS, prompt_end=PromptEnd.WITHIN, has_channels=True)
    assert divided(within, "Hm.<|end|><|start|>assistant" + FINAL) == Divided("It is warm.", "Hm.")
    after = OutputRules(tags=TAGS, prompt_end=PromptEnd.AFTER, has_channels=True)
    assert divided(after, " and dry.") == Divided(" and dry.")


FRAGMENTS = [
    *MARKS,
    *("analysis", "final", "commentary", "assistant", " to=functions.add", " json", "text", " \n"),
    *('{"a": 1}', '{"a":', "{", "}", " to", "<|"),
    *(THOUGHT, FINAL, OLD_CALL, NEW_CALL),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)


@given(TEXTS, st.booleans(), st.sampled_from(list(PromptEnd)), st.data())
def test_where_the_text_is_cut_makes_no_difference(text, has_tags, end, data) -> None:
    rules = OutputRules(
        tags=TAGS if has_tags else None,
        prompt_end=end,
        format=HARMONY,
        names=RULES.names,
        has_channels=True,
    )
    whole = divided(rules, text)
    assert divided(rules, *text) == whole
    assert divided(rules, *cut(data, text)) == whole
    broken = {index for index, _, _ in whole.broken}
    for index, (name, arguments) in enumerate(whole.calls):
        assert name in RULES.names
        assert index in broken or isinstance(json.loads(arguments), dict)


def test_text_without_marks_is_kept() -> None:
    for text in ("a < b", "to=functions.add", "analysis", " today"):
        assert divided(RULES, text) == Divided(text)
        parser = OutputParser(OutputRules(has_channels=True))
        assert parser.push(text + "!") + parser.finish() == [Content(text + "!")]


# Chat template and settings.

SHOWN = [{"type": "function", "function": {"name": "get_weather", "description": "It does."}}]


def talk() -> list[dict]:
    call_id = new_call_id()
    call = {"name": "get_weather", "arguments": ARGUMENTS}
    return [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "The user asks.",
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "31 °C"},
    ]


def test_what_the_template_writes_is_read_back(text_directory) -> None:
    path = text_directory("bytes", chat_template=templates.HARMONY)
    messages = with_thinking(chat_messages(talk()))
    prompt = ChatTemplate.load(path).render(messages, RenderOptions(tools=SHOWN))
    assert prompt.endswith("<|start|>assistant")
    assert call_headers("get_weather")[0] in prompt
    text = prompt.split("<|start|>assistant", 1)[1].split("<|start|>functions.")[0]
    assert divided(RULES, text) == Divided(
        "", "The user asks.", [("get_weather", json.dumps(json.loads(ARGUMENTS)))]
    )


def test_format_of_a_model() -> None:
    assert tools_of("auto", templates.HARMONY).format is HARMONY
    assert tools_of("harmony", "{{ tools }}").format is HARMONY


# Grammars.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(tokenizer, masks) of a model that has the marks as special tokens."""
    directory = tmp_path_factory.mktemp("models") / "harmony"
    make_model(directory, templates.HARMONY, special=MARKS)
    tokenizer = Tokenizer.load(directory)
    end = tokenizer.token_id(EOS)
    vocabulary = load_vocabulary(
        MaskModel("m", str(directory), tokenizer.vocab_size, end_tokens=(end,))
    )
    return tokenizer, TokenMasks(vocabulary)


def kept(model) -> frozenset[int]:
    return frozenset(model[0].token_id(mark) for mark in MARKS)


@pytest.mark.parametrize("end", [PromptEnd.BEFORE, PromptEnd.WITHIN])
def test_needed_calls(model, end) -> None:
    tools = asked(choice="required")
    rules = OutputRules(
        tags=TAGS,
        prompt_end=end,
        format=HARMONY,
        names=frozenset(tool.name for tool in tools.callable),
        has_channels=True,
    )
    grammar = channel_grammar(tools, None, end)
    num_calls = 0
    for seed in range(12):
        text = sampled(model, grammar, kept(model), seed)
        if text is None:
            continue
        found = divided(rules, text)
        assert (len(found.calls), found.broken) == (1, []), text
        check_calls(found)
        num_calls += 1
    assert num_calls > 2


def test_calls_of_strict_tools_that_are_not_needed(model) -> None:
    grammar = channel_grammar(asked(choice="auto", strict=True), None, PromptEnd.BEFORE)
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": '
    assert accepted(model, grammar, THOUGHT + FINAL)
    assert accepted(model, grammar, THOUGHT + call + "[true]}")
    assert not accepted(model, grammar, THOUGHT + call + '"')
    assert not accepted(model, grammar, "No channel.")


def test_a_call_or_json(model) -> None:
    tools = asked(choice="auto", strict=True)
    form = json_schema({"type": "array", "items": {"type": "null"}, "maxItems": 3}, "x")
    grammar = channel_grammar(tools, form, PromptEnd.BEFORE)
    assert accepted(model, grammar, THOUGHT + "<|channel|>final<|message|>[null]")
    assert not accepted(model, grammar, THOUGHT + FINAL)
    assert channel_grammar(tools, regex("a+", "x"), PromptEnd.BEFORE) is None
    with pytest.raises(InvalidValue, match="form of calls cannot be enforced"):
        channel_grammar(tools, None, PromptEnd.AFTER)
