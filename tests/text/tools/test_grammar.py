"""Grammars of tool calls: whatever the masks allow is read as calls that match the schemas."""

import json
import random

import jsonschema
import numpy as np
import pytest

from muxcluster.constraints.grammars import json_schema, regex
from muxcluster.constraints.matching import TokenMasks
from muxcluster.constraints.vocabulary import MaskModel, load_vocabulary
from muxcluster.text.detokenizer import Detokenizer
from muxcluster.text.schemas import ToolBody
from muxcluster.text.tokenizer import Tokenizer
from muxcluster.text.tools.asked import asked_tools
from muxcluster.text.tools.grammar import call_grammar, call_or_json_grammar
from muxcluster.text.tools.output import OutputRules
from tests.http.fakes import EOS
from tests.http.tool_models import make_model
from tests.text.tools import templates
from tests.text.tools.test_output import FORMATS, Divided, divided

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Zürich"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "add": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
MARKS = sorted({mark for form in FORMATS.values() for mark in form.marks})


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def model(request, tmp_path_factory):
    """(tokenizer, masks) of a model whose marks are all special tokens, or all plain ones."""
    directory = tmp_path_factory.mktemp("models") / "marks"
    kinds = {"special": MARKS} if request.param else {"plain": MARKS}
    make_model(directory, templates.PLAIN, **kinds)
    tokenizer = Tokenizer.load(directory)
    end = tokenizer.token_id(EOS)
    vocabulary = load_vocabulary(
        MaskModel("m", str(directory), tokenizer.vocab_size, end_tokens=(end,))
    )
    return tokenizer, TokenMasks(vocabulary)


def asked(*, choice, strict=False, may_repeat=True):
    bodies = [
        ToolBody(type="function", function={"name": name, "parameters": schema, "strict": strict})
        for name, schema in SCHEMAS.items()
    ]
    return asked_tools(bodies, choice, may_repeat=may_repeat)


def sampled(model, grammar: str, kept: frozenset[int], seed: int, most: int = 400) -> str | None:
    """A random output that the grammar allows; None if it does not end in time.

    It ends where it may, three times of four.
    """
    tokenizer, masks = model
    matcher, draw = masks.compile(grammar), random.Random(seed)
    decoder, text = Detokenizer(tokenizer, kept=kept), ""
    end = tokenizer.token_id(EOS)
    for _ in range(most):
        bits = masks.text_bits.copy()
        masks.fill(matcher, bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        assert allowed
        if end in allowed and (len(allowed) == 1 or draw.random() < 0.75):
            return text + decoder.finish()
        allowed = [token for token in allowed if token != end]
        token = draw.choice(allowed)
        text += decoder.push([token])
        assert matcher.consume_token(token)
        if matcher.is_stopped():
            return text + decoder.finish()
    return None


def rules_of(model, name: str, tools) -> OutputRules:
    tokenizer, _ = model
    ids = (tokenizer.token_id(mark) for mark in FORMATS[name].marks)
    return OutputRules(
        format=FORMATS[name],
        names=frozenset(tool.name for tool in tools.callable),
        kept_tokens=frozenset(token for token in ids if tokenizer.is_special(token)),
    )


def check_calls(found: Divided) -> None:
    for name, arguments in found.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "get_weather"}}],
    ids=["required", "named"],
)
def test_needed_calls(model, name, choice) -> None:
    num_calls = set()
    for may_repeat in (True, False):
        tools = asked(choice=choice, may_repeat=may_repeat)
        rules = rules_of(model, name, tools)
        grammar = call_grammar(FORMATS[name], tools, is_after_reasoning=False)
        for seed in range(4):
            text = sampled(model, grammar, rules.kept_tokens, seed)
            if text is None:
                continue
            found = divided(rules, text)
            assert (found.content, found.broken) == ("", []), text
            assert found.calls
            assert may_repeat or len(found.calls) == 1
            check_calls(found)
            if isinstance(choice, dict):
                assert {tool for tool, _ in found.calls} == {"get_weather"}
            num_calls.add(len(found.calls))
    assert 1 in num_calls


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_strict_tools_that_are_not_needed(model, name) -> None:
    tools = asked(choice="auto", strict=True)
    rules = rules_of(model, name, tools)
    grammar = call_grammar(FORMATS[name], tools, is_after_reasoning=False)
    tokenizer, masks = model
    wrong = "Well. " + FORMATS[name].written.prefix + FORMATS[name].written.begin_of("add") + '"'
    right = wrong[:-1] + '{"a": [true]}' + FORMATS[name].written.end + FORMATS[name].written.suffix
    assert accepted(model, grammar, right)
    assert accepted(model, grammar, "No call.")
    assert not accepted(model, grammar, wrong)
    for seed in range(6):
        text = sampled(model, grammar, rules.kept_tokens, seed)
        if text is not None:
            check_calls(divided(rules, text))


def accepted(model, grammar: str, text: str) -> bool:
    """Whether the grammar takes all of `text`, as the model's tokenizer splits it."""
    tokenizer, masks = model
    matcher = masks.compile(grammar)
    return all(matcher.consume_token(token) for token in tokenizer.encode(text, False))


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_or_json(model, name) -> None:
    tools = asked(choice="auto", strict=True)
    rules = rules_of(model, name, tools)
    form = json_schema({"type": "array", "items": {"type": "null"}, "maxItems": 3}, "x")
    grammar = call_or_json_grammar(FORMATS[name], tools, form)
    kinds = set()
    for seed in range(12):
        text = sampled(model, grammar, rules.kept_tokens, seed)
        if text is None:
            continue
        found = divided(rules, text)
        check_calls(found)
        if found.calls:
            assert (len(found.calls), found.content) == (1, "")
        else:
            assert set(json.loads(found.content)) <= {None}
        kinds.add(bool(found.calls))
    assert kinds == {True, False}
    assert call_or_json_grammar(FORMATS[name], tools, regex("a+", "x")) is None


def test_space_after_reasoning(model) -> None:
    tools = asked(choice="required")
    rules = rules_of(model, "hermes", tools)
    grammar = call_grammar(FORMATS["hermes"], tools, is_after_reasoning=True)
    text = sampled(model, grammar, rules.kept_tokens, 0)
    assert text is not None
    assert text.startswith("\n\n<tool_call>")
