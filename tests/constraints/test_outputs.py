"""Outputs drawn at random under masks, held against independent judges of schema and regex."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import BadGrammar, Matching
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import Vocabulary
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler
from tests.constraints.schemas import Schemas


def no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def outcome(sampler: Sampler, matching: Matching, schema: Any, seed: int) -> str:
    """How drawing one output of the schema ends: "valid", "cut" or "refused"."""
    constraint = Constraint(grammars.json_schema(schema, "schema"))
    try:
        matching.prepare(sampler.model, constraint.grammar)
    except BadGrammar:
        return "refused"
    tokens, is_complete = sampler.draw(matching.masks, constraint, seed, f"{seed}")
    if not is_complete:
        return "cut"
    text = sampler.text(tokens)
    value = json.loads(text, parse_constant=no_constant)
    problems = list(Draft202012Validator(schema).iter_errors(value))
    assert not problems, (schema, text, problems[0].message)
    return "valid"


def run(sampler: Sampler, matching: Matching, seeds: range) -> dict[str, int]:
    found = {"valid": 0, "cut": 0, "refused": 0}
    for seed in seeds:
        found[outcome(sampler, matching, Schemas(seed).draw(), seed)] += 1
    return found


def test_every_output_is_valid(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    found = run(Sampler(model.name, vocabulary), matching, range(150))
    assert found["valid"] > 110, found


@pytest.mark.slow
def test_every_output_of_2000_schemas_is_valid(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    found = run(Sampler(model.name, vocabulary), matching, range(1000, 3000))
    assert found["valid"] > 1500, found
