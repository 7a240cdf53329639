"""Requests to a unit: others' first tokens while schemas compile, and outputs under random ones."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from bench.processes import TICKS_PER_S, descendants, settle
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
SMALL_BYTES = 100  # of a schema of one or two properties
EVERY = 3  # so many turns have one round with small schemas, of which the median is enough


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


@dataclass(slots=True)
class Rounds:
    """Rounds of one kind. taken_ms: to the first tokens. processor_ms: of all, by process."""

    taken_ms: list[float] = field(default_factory=list)
    processor_ms: dict[str, float] = field(default_factory=dict)

    def add_processor_ms(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Add what the processes have taken in one round."""
        for name, ms in after.items():
            taken_ms = ms - before.get(name, 0.0)
            self.processor_ms[name] = self.processor_ms.get(name, 0.0) + taken_ms

    def of_a_request(self) -> dict[str, float]:
        """Processor milliseconds of a short request and what was beside it, by process."""
        return {name: round(ms / len(self.taken_ms), 1) for name, ms in self.processor_ms.items()}


def first_tokens(
    asker: Asker, *, num_rounds: int, num_requests: int, gap_s: float, schema_bytes: int
) -> dict[str, Rounds]:
    """Milliseconds to the first tokens of short requests, in rounds one after the other.

    alone: nobody else asks. small: another client asks, one request after the other, with a schema
    that takes next to nothing to compile. beside: the same with large schemas.
    """
    sizes = {"alone": None, "small": SMALL_BYTES, "beside": schema_bytes}
    found = {kind: Rounds() for kind in sizes}
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    number = 0
    turns = [turn for turn in range(num_rounds) for _ in sizes]
    for turn, (kind, num_bytes) in zip(turns, [*sizes.items()] * num_rounds, strict=True):
        if kind == "small" and turn % EVERY:
            continue
        asked, compiling = [], None
        before = processor_ms()
        for _ in range(num_requests):
            if num_bytes is not None and (compiling is None or compiling.ended.is_set()):
                number += 1
                text = grammars.json_schema(large_schema(num_bytes, number), "schema")
                one = replace(short, max_tokens=1, constraint=Constraint(text))
                compiling = asker.ask(8, one)
            asked.append(asker.ask(32, short))
            time.sleep(gap_s)
        wait_for(asked if compiling is None else [*asked, compiling])
        found[kind].add_processor_ms(before, processor_ms())
        found[kind].taken_ms += [
            1e3 * (each.first_s - each.sent_s) for each in asked if each.first_s
        ]
    return found


def processor_ms() -> dict[str, float]:
    """Processor milliseconds so far of this process, the unit, and of its children by kind."""
    found: Counter[str] = Counter()
    for pid in descendants(os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            is_masks = b"constraints.process.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # a check that has ended
            continue
        fields = stat.rpartition(")")[2].split()
        is_ours = int(fields[1]) == os.getpid()
        name = "unit" if pid == os.getpid() else "workers"
        if is_masks:
            name = "keeper" if is_ours else "mask server"
            found["checks"] += sum(map(int, fields[13:15]))  # of children that have ended
        found[name] += sum(map(int, fields[11:13]))
    return {name: 1e3 * ticks / TICKS_PER_S for name, ticks in found.items()}


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
