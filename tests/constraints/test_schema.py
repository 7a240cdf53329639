"""Schemas that are refused, with the path to what is wrong; judged by the meta-schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from muxcluster.constraints.schema import MOST_DEPTH, TYPES, check_schema, without_harmless
from muxcluster.core.errors import InvalidValue
from tests.constraints.schemas import Schemas

PARAM = "response_format.json_schema.schema"
REFUSED: list[tuple[Any, str]] = [
    (3, ""),
    (False, ""),
    ([], ""),
    ({"type": "integr"}, ".type"),
    ({"properties": {"age": {"type": "number", "minimum": "1"}}}, ".properties.age.minimum"),
    ({"properties": {"a b": {"items": {"enum": []}}}}, ".properties.a b.items.enum"),
    ({"anyOf": [{}, {"required": ["a", "a"]}]}, ".anyOf[1].required"),
    ({"anyOf": []}, ".anyOf"),
    ({"$defs": {"x": {"pattern": 1}}}, ".$defs.x.pattern"),
    ({"$ref": "#/$defs/y"}, ".$ref"),
    ({"$ref": "https://example.com/schema"}, ".$ref"),
    ({"prefixItems": {"type": "string"}}, ".prefixItems"),
    ({"items": [{"type": "string"}]}, ".items"),
    ({"not": {"type": "string"}}, ".not"),
    ({"type": "array", "contains": {}}, ".contains"),
    ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
    ({"allOf": [{"if": {}, "then": {}}]}, ".allOf[0].if"),
    ({"type": "string", "format": "colour"}, ".format"),
    ({"type": "string", "minLength": -1}, ".minLength"),
    ({"type": "string", "minLength": True}, ".minLength"),
    ({"multipleOf": 0}, ".multipleOf"),
    ({"minProperties": 2}, ".minProperties"),
    ({"x-guidance": {"lenient": True}}, ".x-guidance"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, ".$schema"),
    ({"properties": {"a": {"$id": "https://example.com/a"}}}, ".properties.a.$id"),
    ({"minimum": float("nan")}, ""),
    ({"properties": {"a": {"additionalProperties": "no"}}}, ".properties.a.additionalProperties"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=str)
def test_what_is_wrong_is_named_by_its_path(schema: Any, place: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_schema(schema, PARAM)
    assert caught.value.message.startswith(f"{PARAM}{place}: ")
    assert caught.value.param == PARAM


def test_size_and_depth() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidValue, match=f"more than {MOST_DEPTH} deep"):
        check_schema(deep, PARAM)
    with pytest.raises(InvalidValue, match="bytes"):
        check_schema({"description": "x" * 300_000}, PARAM)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}, {}]},
        {"definitions": {"a": {}}, "$ref": "#/definitions/a"},
        {"type": ["string", "null"], "nullable": True, "deprecated": True, "discriminator": {}},
        {"enum": [{"type": 3, "not": {}}], "default": {"$ref": "?"}, "examples": [{"format": "x"}]},
        {"type": "object", "minProperties": 2, "required": ["a"]},
    ],
    ids=str,
)
def test_what_is_taken(schema: Any) -> None:
    check_schema(schema, PARAM)


def test_random_schemas_are_taken() -> None:
    for seed in range(300):
        check_schema(Schemas(seed).draw(), PARAM)


KEYWORDS = st.sampled_from(
    ["type", "enum", "minimum", "maxLength", "pattern", "required", "properties", "items", "anyOf"]
    + ["additionalProperties", "prefixItems", "multipleOf", "$defs", "allOf", "title", "minItems"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from([*TYPES, "a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, VALUES, max_size=4))
def test_what_the_meta_schema_refuses_is_refused(schema: dict[str, Any]) -> None:
    try:
        check_schema(schema, PARAM)
    except InvalidValue as error:
        if "cannot be honoured" in error.message or "list of values" in error.message:
            return  # stricter than the meta-schema, and said so
        with pytest.raises(SchemaError):
            Draft202012Validator.check_schema(schema)
    else:
        Draft202012Validator.check_schema(schema)


def test_a_keyword_that_changes_nothing_is_left_out() -> None:
    schema = {"properties": {"a": {"type": "array", "uniqueItems": False}}, "enum": [{"b": 1}]}
    check_schema(schema, PARAM)
    assert without_harmless(schema) == {
        "properties": {"a": {"type": "array"}},
        "enum": [{"b": 1}],
    }
    assert schema["properties"]["a"]["uniqueItems"] is False
