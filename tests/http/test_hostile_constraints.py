"""Hostile constraints over HTTP: an answer, or a 400 that names the field; no 500 and no hang."""

import copy
import json
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.constraints.schemas import Schemas
from tests.http.fakes import FakeBackend

TAG = {"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}
CALL = TAG | {"content": {"type": "json_schema", "json_schema": {"type": "integer"}}}
FORMATS = (
    CALL,
    {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "at_least_one": True},
    {"type": "tags_with_separator", "separator": ",", "tags": [CALL, TAG]},
    {"type": "sequence", "elements": [TAG, {"type": "regex", "pattern": "a+"}]},
    {"type": "or", "elements": [{"type": "const_string", "value": "x"}, {"type": "any_text"}]},
)
OLDER = {
    "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
    "triggers": ["<f"],
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**70, 1e400, float("nan"), "", "x", "\x00", "🦊", "\\", "{", "[]"),
    *([], {}, [[]], {"": {}}, {"type": "object"}, {"$ref": "#"}, {"type": "any_text"}, ["a"]),
    *("(a+)+$", "[", "start: start", "root ::= root", 'start: "a"\n' * 500, "\n" * 100_000),
    {"properties": {"a": {"not": {}}}},
    json.loads('{"items":' * 200 + "{}" + "}" * 200),
    json.loads('{"type":"or","elements":[' * 90 + "0" + "]}" * 90),
)


class Bodies:
    """Draws constraints as clients write them, and changes parts of them at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._schemas = Schemas(seed)

    def draw(self) -> dict[str, Any]:
        """Return fields of a body."""
        wanted = copy.deepcopy(self._whole())
        for _ in range(self._random.randrange(4)):
            self._change(wanted)
        return wanted

    def _whole(self) -> dict[str, Any]:
        pick = self._random.choice
        schema = self._schemas.draw()
        named = {"name": "n", "schema": schema, "strict": pick((True, False))}
        tag = pick(({"format": pick(FORMATS)}, OLDER))
        return pick(
            (
                {"response_format": {"type": "json_schema", "json_schema": named}},
                {"response_format": {"type": "json_object"}},
                {"response_format": {"type": "structural_tag", **tag}},
                {"structured_outputs": {"json": pick((schema, json.dumps(schema)))}},
                {"structured_outputs": {"structural_tag": json.dumps(tag)}},
                {"structured_outputs": {"choice": ["a", "b"]}},
                {"structural_tag": tag},
                {"guided_json": schema},
                {"guided_regex": "[a-z]+"},
                {"guided_choice": ["yes", "no"]},
                {"guided_grammar": 'start: "a" | "b"'},
                {"ebnf": 'root ::= "a"'},
            )
        )

    def _change(self, inside: Any) -> None:
        """Replace, remove or add something somewhere inside."""
        while True:
            keys = list(inside if isinstance(inside, dict) else range(len(inside)))
            if not keys:
                return
            key = self._random.choice(keys)
            inner = inside[key]
            if not isinstance(inner, dict | list) or self._random.random() < 0.3:
                break
            inside = inner
        kind = self._random.randrange(4)
        if kind == 0:
            del inside[key]
        elif kind == 1 and isinstance(inside, dict):
            inside[self._random.choice((*keys, "excludes", "items", "$ref", "type"))] = inner
        else:
            inside[key] = copy.deepcopy(self._random.choice(VALUES))


def check(http: TestClient, backend: FakeBackend, seed: int) -> int:
    """Ask with one body; return the status."""
    fields = Bodies(seed).draw()
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4, **fields}
    headers = {"Content-Type": "application/json"}
    answer = http.post("/v1/completions", content=json.dumps(body), headers=headers)
    assert answer.status_code in (200, 400), (seed, fields, answer.text)
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, seed
        assert len(answer.content) < 2000, (seed, answer.text)
        assert error["code"] == "invalid_json" or error["param"], (seed, fields, error)
    else:
        (request,) = backend.requests
        constraint = request.sampling.constraint
        assert constraint is None or isinstance(json.loads(constraint.grammar), dict), seed
    backend.requests.clear()
    return answer.status_code


def test_bodies_changed_at_random(http: TestClient, backend: FakeBackend) -> None:
    statuses = [check(http, backend, seed) for seed in range(300)]
    assert 50 < statuses.count(200) < 250


@pytest.mark.slow
def test_5000_bodies_changed_at_random(http: TestClient, backend: FakeBackend) -> None:
    for seed in range(300, 5300):
        check(http, backend, seed)
