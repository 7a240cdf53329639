"""Qwen3-Coder's calls: an argument a mark, texts as they are and other values as JSON."""

import json
from itertools import pairwise

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.errors import InvalidValue
from muxcluster.text.schemas import ToolBody
from muxcluster.text.tools.asked import asked_tools
from muxcluster.text.tools.formats import QWEN3_CODER
from muxcluster.text.tools.grammar import call_grammar, call_or_json_grammar, text_arguments
from muxcluster.text.tools.output import OutputParser, OutputRules
from muxcluster.text.tools.parts import Arguments, CallBegun
from tests.text.tools.test_grammar import accepted, json_schema, model, sampled
from tests.text.tools.test_output import FRAGMENTS, Divided, divided

__all__ = ["model"]  # a fixture

PLACE = {"type": "array", "items": {"enum": ["</parameter>", 1]}, "maxItems": 2}
SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Zürich 8"]},
            "note": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 20},
            "near": {"$ref": "#/$defs/place"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"place": PLACE},
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
TEXTS = {"get_weather": frozenset({"city", "note"}), "clock": frozenset()}
RULES = OutputRules(format=QWEN3_CODER, names=frozenset(SCHEMAS), texts=TEXTS)


def tools_of(schemas=SCHEMAS, **fields):
    choice = fields.pop("choice", "required")
    bodies = [
        ToolBody(type="function", function={"name": name, "parameters": schema, **fields})
        for name, schema in schemas.items()
    ]
    return asked_tools(bodies, choice)


def written(*calls: tuple[str, dict[str, str]]) -> str:
    """Calls with their arguments as the family's template writes them."""
    texts = []
    for name, arguments in calls:
        fields = [f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in arguments.items()]
        texts.append(f"<tool_call>\n<function={name}>\n{''.join(fields)}</function>\n</tool_call>")
    return "\n".join(texts)


def values(found: Divided) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in found.calls]


def test_texts_are_the_arguments_whose_schema_says_so() -> None:
    assert text_arguments(tools_of()) == TEXTS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        (" [1, \n {}] ", [1, {}]),
        ('"a\\n</parameter>"', "a\n</parameter>"),
        ("True", True),
        ("None", None),
        ("NaN", "NaN"),
        ("[draft] of", "[draft] of"),
        ('{"a": 1', '{"a": 1'),
        ("two\nlines ", "two\nlines "),
        ("", ""),
    ],
)
def test_values_that_are_no_texts(text: str, value: object) -> None:
    found = divided(RULES, written(("get_weather", {"days": text})))
    assert values(found) == [("get_weather", {"days": value})]
    assert (found.content, found.broken) == ("", [])


ANY_TEXT = st.text(max_size=30).filter(lambda text: "</parameter>" not in text)


@given(ANY_TEXT, ANY_TEXT, st.data())
def test_any_text_in_any_pieces(city: str, note: str, data: st.DataObject) -> None:
    text = "Well.\n\n" + written(("clock", {}), ("get_weather", {"note": note, "city": city}))
    ends = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    found = divided(RULES, *(text[a:b] for a, b in pairwise([0, *ends, len(text)])))
    assert (found.content, found.broken) == ("Well.", [])
    assert values(found) == [("clock", {}), ("get_weather", {"note": note, "city": city})]


def test_texts_come_as_they_are_written() -> None:
    parser = OutputParser(RULES, lambda: "id")
    begun = parser.push("<tool_call>\n<function=get_weather>\n<parameter=note>\nIt is ")
    assert begun == [
        CallBegun(0, "id", "get_weather"),
        Arguments(0, '{"note": '),
        Arguments(0, '"'),
        Arguments(0, "It is "),
    ]
    assert parser.push('"warm"\n</para') == [Arguments(0, '\\"warm\\"')]
    assert parser.push("meter>\n</function>") == [Arguments(0, '"'), Arguments(0, "}")]
    assert parser.num_calls == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n{}\n</tool_call>",
        "<tool_call>\n<function=cl",
        "<tool_call>",
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    assert divided(RULES, text) == Divided(text)


@pytest.mark.parametrize("end", ["", "<parameter=days>\n1", "<parameter=note>\na", "oops"])
def test_a_call_that_breaks_is_told(end: str) -> None:
    text = "<tool_call>\n<function=get_weather>\n" + end
    found = divided(RULES, text)
    ((index, raw, _),) = found.broken
    assert index == 0
    assert raw + found.content == text


MORE = [
    *FRAGMENTS,
    "<function=clock>",
    "<function=get_weather>",
    "<parameter=note>",
    "<parameter=days>",
    "</parameter>",
    "</function>",
]


@given(st.lists(st.sampled_from(MORE), max_size=25).map("".join), st.data())
def test_where_the_text_is_cut_makes_no_difference(text: str, data: st.DataObject) -> None:
    whole = divided(RULES, text)
    assert divided(RULES, *text) == whole
    broken = {index for index, _, _ in whole.broken}
    for index, (name, arguments) in enumerate(whole.calls):
        assert name in SCHEMAS
        if index not in broken:
            assert isinstance(json.loads(arguments), dict)


def rules_for(model) -> OutputRules:
    tokenizer, _ = model
    ids = (tokenizer.token_id(mark) for mark in QWEN3_CODER.marks)
    kept = frozenset(token for token in ids if tokenizer.is_special(token))
    return OutputRules(format=QWEN3_CODER, names=frozenset(SCHEMAS), texts=TEXTS, kept_tokens=kept)


def check_calls(found: Divided) -> None:
    assert (found.content, found.broken) == ("", [])
    for name, value in values(found):
        jsonschema.validate(value, SCHEMAS[name])


def test_needed_calls_match_their_schemas(model) -> None:
    rules, grammar = (
        rules_for(model),
        call_grammar(QWEN3_CODER, tools_of(), is_after_reasoning=False),
    )
    names = set()
    for seed in range(12):
        text = sampled(model, grammar, rules.kept_tokens, seed)
        if text is not None:
            found = divided(rules, text)
            check_calls(found)
            names |= {name for name, _ in found.calls}
    assert names == set(SCHEMAS)


def test_calls_of_strict_tools_beside_free_text(model) -> None:
    tools = tools_of(choice="auto", strict=True)
    grammar = call_grammar(QWEN3_CODER, tools, is_after_reasoning=False)
    right = written(("get_weather", {"city": "Paris", "note": "1 </parameter> <", "days": "3"}))
    assert accepted(model, grammar, "Well.\n" + right)
    assert accepted(model, grammar, "No call.")
    for arguments in (
        {"city": "Rome"},
        {"days": "3"},
        {"city": "Paris", "days": "thirty"},
        {"city": "Paris", "days": "3", "more": "1"},
    ):
        assert not accepted(model, grammar, "Well.\n" + written(("get_weather", arguments)))


def test_a_tool_that_is_not_strict_beside_a_strict_one(model) -> None:
    """Its arguments are any, in the same marks."""
    strict = ToolBody(
        type="function", function={"name": "clock", "parameters": SCHEMAS["clock"], "strict": True}
    )
    free = ToolBody(type="function", function={"name": "get_weather"})
    tools = asked_tools([strict, free], "auto")
    grammar = call_grammar(QWEN3_CODER, tools, is_after_reasoning=False)
    assert accepted(model, grammar, written(("get_weather", {"x": "1", "any one": "a\nb"})))
    assert not accepted(model, grammar, written(("clock", {"x": "1"})))


def test_one_call_or_json(model) -> None:
    rules, tools = rules_for(model), tools_of(choice="auto", strict=True)
    form = json_schema({"type": "array", "items": {"type": "null"}, "maxItems": 3}, "x")
    grammar = call_or_json_grammar(QWEN3_CODER, tools, form)
    kinds = set()
    for seed in range(16):
        text = sampled(model, grammar, rules.kept_tokens, seed)
        if text is not None:
            found = divided(rules, text)
            kinds.add(bool(found.calls))
            if found.calls:
                check_calls(found)
            else:
                assert set(json.loads(found.content)) <= {None}
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "string", "maxLength": 3}}}, "properties.a.maxLength"),
        ({"properties": {"a>b": {}}}, "properties: the name a>b"),
        ({"minProperties": 1}, "minProperties"),
        ({"properties": {"a": {}}, "required": ["b"]}, "required: b"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(schema, place: str) -> None:
    tools = tools_of({"f": {"type": "object", **schema}})
    with pytest.raises(InvalidValue, match=f"tools\\[0\\].function.parameters.{place}"):
        call_grammar(QWEN3_CODER, tools, is_after_reasoning=False)
    # where nothing must be enforced it is taken
    loose = tools_of({"f": {"type": "object", **schema}}, choice="auto")
    assert not loose.has_grammar
