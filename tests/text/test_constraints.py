"""Constraints in request bodies: each field gives its grammar, and what is wrong its path."""

import json

import pytest

from muxcluster.constraints import grammars
from muxcluster.core.errors import InvalidValue, RequestError, UnsupportedParameter
from muxcluster.text.schemas import ChatBody, CompletionBody
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.constraints import constraint_of

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
BAD = {"type": "object", "properties": {"age": {"type": "integr"}}}
GBNF = 'root ::= "a" | "b"'
LARK = 'start: "a" | "b"'
TAG = {
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}


def constraint(fields, schema=CompletionBody):
    prompt = {"prompt": "x"} if schema is CompletionBody else {"messages": []}
    return constraint_of(parse(schema, {"model": "tiny", **prompt, **fields}))


def response_format(kind, **fields):
    return {"response_format": {"type": kind, **fields}}


def json_schema(schema, **fields):
    return response_format("json_schema", json_schema={"name": "x", "schema": schema, **fields})


def structured(**fields):
    return {"structured_outputs": fields}


OF_SCHEMA = grammars.json_schema(SCHEMA, "x")
OF_REGEX = grammars.regex("[a-z]{3}", "x")
OF_CHOICE = grammars.choice(["yes", "no"], "x")


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        (json_schema(SCHEMA), OF_SCHEMA),
        (json_schema(SCHEMA, strict=True, description="a person"), OF_SCHEMA),
        (json_schema(SCHEMA, strict=False), OF_SCHEMA),
        (structured(json=SCHEMA), OF_SCHEMA),
        (structured(json=json.dumps(SCHEMA)), OF_SCHEMA),
        (structured(json=SCHEMA, json_object=False, disable_any_whitespace=False), OF_SCHEMA),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "auto"}, OF_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, OF_SCHEMA),
        ({"json_schema": json.dumps(SCHEMA)}, OF_SCHEMA),
        (response_format("json_object"), grammars.json_object()),
        (structured(json_object=True), grammars.json_object()),
        (structured(regex="[a-z]{3}"), OF_REGEX),
        ({"guided_regex": "[a-z]{3}"}, OF_REGEX),
        ({"regex": "[a-z]{3}", **response_format("text")}, OF_REGEX),
        (structured(choice=["yes", "no"]), OF_CHOICE),
        ({"guided_choice": ["yes", "no"]}, OF_CHOICE),
        (structured(grammar=LARK), grammars.lark(LARK, "x")),
        ({"guided_grammar": GBNF}, grammars.lark(GBNF, "x")),
        ({"ebnf": GBNF}, grammars.lark(GBNF, "x")),
    ],
    ids=lambda value: str(value)[:50],
)
def test_every_name_gives_the_grammar_of_its_kind(body, fields, grammar):
    found = constraint(fields, body)
    assert found is not None
    assert (found.grammar, found.begins_after) == (grammar, ())


def test_every_name_of_a_structural_tag_gives_the_same_grammar():
    text = json.dumps({"type": "structural_tag", **TAG})
    found = {
        constraint(fields).grammar
        for fields in (
            response_format("structural_tag", **TAG),
            structured(structural_tag=text),
            structured(structural_tag={"type": "structural_tag", **TAG}),
            {"structural_tag": text},
        )
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    "fields",
    [{}, response_format("text"), {"response_format": None}, structured(json_object=False)],
    ids=str,
)
def test_no_constraint(fields):
    assert constraint(fields) is None


def test_properties_keep_their_order():
    """The engine writes them in the order of the schema."""
    names = ["z", "a", "m"]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    grammar = constraint(json_schema(schema)).grammar
    places = [grammar.index(f'"{name}"') for name in names]
    assert places == sorted(places)


INVALID, MISSING = "invalid_value", "missing_required_parameter"
UNSUPPORTED = UnsupportedParameter.code


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (response_format("xml"), INVALID, "response_format.type"),
        ({"response_format": "json"}, INVALID, "response_format"),
        ({"response_format": {}}, MISSING, "response_format.type"),
        (response_format("json_object", schema={}), UNSUPPORTED, "response_format.schema"),
        (response_format("json_schema"), MISSING, "response_format.json_schema"),
        (
            response_format("text", json_schema={"name": "x", "schema": {}}),
            INVALID,
            "response_format.json_schema",
        ),
        (response_format("json_object", triggers=["x"]), INVALID, "response_format.triggers"),
        (
            response_format("json_schema", json_schema={"schema": {}}),
            MISSING,
            "response_format.json_schema.name",
        ),
        (
            response_format("json_schema", json_schema={"name": "x"}),
            MISSING,
            "response_format.json_schema.schema",
        ),
        (json_schema({}, strict="yes"), INVALID, "response_format.json_schema.strict"),
        (json_schema({}, more=1), UNSUPPORTED, "response_format.json_schema.more"),
        (json_schema([]), INVALID, "response_format.json_schema.schema"),
        (response_format("structural_tag"), INVALID, "response_format"),
        (structured(), INVALID, "structured_outputs"),
        (structured(jsn={}), UNSUPPORTED, "structured_outputs.jsn"),
        (structured(json="{"), INVALID, "structured_outputs.json"),
        (structured(json="[]"), INVALID, "structured_outputs.json"),
        (structured(json='{"const": "\\ud800"}'), INVALID, "structured_outputs.json"),
        (structured(json="[" * 5000), INVALID, "structured_outputs.json"),
        (structured(choice=[]), INVALID, "structured_outputs.choice"),
        (structured(choice=["a", 1]), INVALID, "structured_outputs.choice[1]"),
        (structured(regex=1), INVALID, "structured_outputs.regex"),
        (
            structured(json={}, disable_any_whitespace=True),
            UNSUPPORTED,
            "structured_outputs.disable_any_whitespace",
        ),
        (
            structured(json={}, disable_additional_properties=True),
            UNSUPPORTED,
            "structured_outputs.disable_additional_properties",
        ),
        (
            structured(json={}, whitespace_pattern=" ?"),
            UNSUPPORTED,
            "structured_outputs.whitespace_pattern",
        ),
        ({"guided_json": 5}, INVALID, "guided_json"),
        (
            {"guided_json": {}, "guided_decoding_backend": "outlines"},
            UNSUPPORTED,
            "guided_decoding_backend",
        ),
        (
            {"guided_json": {}, "guided_whitespace_pattern": " "},
            UNSUPPORTED,
            "guided_whitespace_pattern",
        ),
        ({"guided_grammar": "neither"}, INVALID, "guided_grammar"),
        ({"structural_tag": "{}"}, INVALID, "structural_tag"),
        # more than one
        (structured(regex="a", choice=["b"]), INVALID, "structured_outputs.choice"),
        (
            structured(regex="a") | response_format("json_object"),
            INVALID,
            "structured_outputs.regex",
        ),
        (json_schema(SCHEMA) | {"guided_json": SCHEMA}, INVALID, "guided_json"),
        ({"guided_regex": "a", "ebnf": GBNF}, INVALID, "ebnf"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_is_named(fields, code, param):
    with pytest.raises(RequestError) as error:
        constraint(fields)
    assert (error.value.code, error.value.param) == (code, param)
    assert error.value.message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (json_schema(BAD), "response_format.json_schema.schema.properties.age.type"),
        (structured(json=BAD), "structured_outputs.json.properties.age.type"),
        ({"guided_json": BAD}, "guided_json.properties.age.type"),
        (
            response_format(
                "structural_tag",
                triggers=["<"],
                structures=[{"begin": "<", "schema": BAD, "end": ">"}],
            ),
            "response_format.structures[0].schema.properties.age.type",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_schema_is_named_with_the_path_inside_it(fields, path):
    with pytest.raises(RequestError) as error:
        constraint(fields)
    assert error.value.code == INVALID
    assert path in error.value.message or error.value.param == path


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_grammar": "x" + "\n" * 200_000},
        {"guided_grammar": "\n" * 200_000 + "x"},
        {"guided_grammar": "start " * 5_000_000},
        {"guided_regex": "a" * 20_000_000},
        {"guided_choice": ["a"] * 1_000_000},
        {"guided_json": {"enum": [0] * 5_000_000}},
        {"guided_json": {"const": "a" * 20_000_000}},
        {"structural_tag": {"format": {"type": "or", "elements": [0] * 5_000_000}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_large_one_is_refused_before_time_is_spent_on_it(fields):
    """The first two took minutes once: time that grew with the square of the length."""
    with pytest.raises(InvalidValue):
        constraint(fields)
