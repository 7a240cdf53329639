"""The official JSON Schema test suite: what it calls invalid cannot be written under a mask.

It is no part of an installed package. It lies in the folder `json` of jsonschema's source package,
and is looked for where jsonschema's own tests look: in the folder named by JSON_SCHEMA_TEST_SUITE.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import BadGrammar, Matching
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import Vocabulary
from muxcluster.core.errors import InvalidValue
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler

DRAFTS = {
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", Draft202012Validator),
    "draft2019-09": ("https://json-schema.org/draft/2019-09/schema", Draft201909Validator),
    "draft7": ("http://json-schema.org/draft-07/schema#", Draft7Validator),
    "draft6": ("http://json-schema.org/draft-06/schema#", Draft6Validator),
}
NUM_OUTPUTS = 2


def suite() -> Path:
    folder = os.environ.get("JSON_SCHEMA_TEST_SUITE")
    if not folder:
        pytest.skip("the JSON Schema test suite is not installed: set JSON_SCHEMA_TEST_SUITE")
    return Path(folder) / "tests"


def with_draft(schema: Any, uri: str) -> Any:
    return {"$schema": uri, **schema} if isinstance(schema, dict) else schema


def check_group(
    sampler: Sampler, matching: Matching, group: dict[str, Any], draft: str, name: str
) -> Counter[str]:
    """Check a schema with all its values; count what became of it."""
    uri, validator = DRAFTS[draft]
    schema = with_draft(group["schema"], uri)
    try:
        constraint = Constraint(grammars.json_schema(schema, "schema"))
        matching.prepare(sampler.model, constraint.grammar)
    except (InvalidValue, BadGrammar):
        return Counter(refused=1)
    found = Counter(honoured=1)
    for at, each in enumerate(group["tests"]):
        text = json.dumps(each["data"], ensure_ascii=False, separators=(",", ":"))
        is_accepted = sampler.accepts(matching.masks, constraint, text, f"{name} {at}")
        assert each["valid"] or not is_accepted, (schema, text)
        if each["valid"]:
            found["written" if is_accepted else "not written"] += 1
    for seed in range(NUM_OUTPUTS):
        tokens, is_complete = sampler.draw(matching.masks, constraint, seed, f"{name} out {seed}")
        if is_complete:
            validator(schema).validate(json.loads(sampler.text(tokens)))
            found["drawn"] += 1
    return found


@pytest.mark.parametrize("draft", DRAFTS)
def test_nothing_invalid_can_be_written(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching, draft: str
) -> None:
    sampler, found = Sampler(model.name, vocabulary), Counter[str]()
    for path in sorted((suite() / draft).glob("*.json")):
        for at, group in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            found += check_group(sampler, matching, group, draft, f"{path.name} {at}")
    assert found["honoured"] > 100, found
    assert found["written"] > 2 * found["not written"], found
