"""Requests to a unit: others' first tokens while schemas compile, and outputs under random ones."""

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from bench.processes import settle
from bench.structured.steps import NAME
from muxcluster.constraints import grammars
from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.unit.unit import Unit
from muxcluster.text.tokenizer import Tokenizer
from tests.constraints.schemas import Schemas

PATIENCE_S = 600.0


@dataclass(slots=True)
class _Asked:
    """A request: when it was sent, its first token's time, its tokens, its end."""

    sent_s: float
    first_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    is_refused: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class Asker:
    """Sends requests to a unit in this process and notes what comes."""

    def __init__(self, spec: UnitSpec) -> None:
        self._asked: dict[str, _Asked] = {}
        self._chance = np.random.default_rng(0)
        self._unit = Unit(spec, self._hear)
        self._unit.start()
        settle()

    def close(self) -> None:
        """End the unit."""
        self._unit.close()

    def ask(self, num_prompt: int, sampling: SamplingParams) -> _Asked:
        """Send a request with a random prompt."""
        prompt = self._chance.integers(3, 250, num_prompt).astype(np.int32)
        name = f"{len(self._asked)}"
        asked = self._asked[name] = _Asked(time.perf_counter())
        self._unit.submit(Request(name, NAME, prompt, sampling))
        return asked

    def _hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        now_s = time.perf_counter()
        for name, delta in deltas.items():
            asked = self._asked[name]
            if delta.tokens and asked.first_s is None:
                asked.first_s = now_s
            asked.tokens += delta.tokens
            if delta.finished is not None:
                asked.reason = delta.finished.reason
            asked.is_refused = delta.rejected is not None
            if delta.finished is not None or delta.rejected is not None:
                asked.ended.set()


def wait_for(asked: Sequence[_Asked]) -> None:
    """Wait for the ends. Raises RuntimeError if they do not come."""
    if not all(each.ended.wait(PATIENCE_S) for each in asked):
        raise RuntimeError("the unit did not answer")


def large_schema(num_bytes: int, seed: int) -> dict[str, Any]:
    """Return a schema of so many bytes: properties of all types."""
    chance = random.Random(seed)
    properties: dict[str, Any] = {}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    size = len(json.dumps(schema))
    while size < num_bytes:
        name = f"{chance.getrandbits(40):x}_{len(properties)}"
        kinds = [
            {"type": "string", "description": f"what {name} is", "maxLength": 40},
            {"type": "integer", "minimum": 0, "maximum": 10_000},
            {"enum": [f"{name} {number}" for number in range(6)]},
            {"type": "array", "items": {"type": "number"}, "maxItems": 5},
        ]
        properties[name] = chance.choice(kinds)
        size += len(json.dumps({name: properties[name]}))
    return schema


def first_tokens(
    asker: Asker, *, num_rounds: int, num_requests: int, gap_s: float, schema_bytes: int
) -> dict[str, list[float]]:
    """Milliseconds to the first tokens of short requests, in rounds with and without others' large
    schemas, one after the other."""
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    number = 0
    for kind in ("alone", "beside") * num_rounds:
        asked, compiling = [], None
        for _ in range(num_requests):
            if kind == "beside" and (compiling is None or compiling.ended.is_set()):
                number += 1
                text = grammars.json_schema(large_schema(schema_bytes, number), "schema")
                one = replace(short, max_tokens=1, constraint=Constraint(text))
                compiling = asker.ask(8, one)
            asked.append(asker.ask(32, short))
            time.sleep(gap_s)
        wait_for(asked if compiling is None else [*asked, compiling])
        found[kind] += [1e3 * (each.first_s - each.sent_s) for each in asked if each.first_s]
    return found


def judged(asker: Asker, tokenizer: Tokenizer, seeds: range, max_tokens: int) -> dict[str, int]:
    """Ask for an output of every random schema, and count what comes."""
    schemas = [Schemas(seed).draw() for seed in seeds]
    asked = []
    for seed, schema in zip(seeds, schemas, strict=True):
        constraint = Constraint(grammars.json_schema(schema, "schema"))
        sampling = SamplingParams(seed=seed, max_tokens=max_tokens, constraint=constraint)
        asked.append(asker.ask(16, sampling))
    wait_for(asked)
    found = {"valid": 0, "invalid": 0, "cut": 0, "refused": 0}
    for schema, each in zip(schemas, asked, strict=True):
        if each.is_refused:
            found["refused"] += 1
        elif each.reason is not FinishReason.STOP:
            found["cut"] += 1
        else:
            found[_judgement(schema, tokenizer.decode(each.tokens))] += 1
    return found


def _judgement(schema: Any, text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return "invalid"
    return "valid" if Draft202012Validator(schema).is_valid(value) else "invalid"
