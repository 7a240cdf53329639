"""Outputs of a model with random weights under thousands of schemas, whatever dies meanwhile."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from muxcluster.constraints import grammars
from muxcluster.core.errors import InvalidValue
from muxcluster.core.events import FinishReason
from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.text.tokenizer import Tokenizer
from tests.constraints.schemas import Schemas
from tests.constraints.test_official_suite import suite, with_draft
from tests.engine.fakes import Sink
from tests.engine.live_units import children
from tests.engine.unit.test_constraints import mask_processes
from tests.engine.units import check_nothing_leaks, request_of, running, spec_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_SCHEMAS = 2000
MOST_TOKENS = 200
NUM_KILLS = 8
PATIENCE_S = 1800.0
DRAFT = "draft2020-12", "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: what its output must be valid against."""

    schema: Any
    constraint: Constraint


def random_schemas() -> list[Any]:
    return [Schemas(seed).draw() for seed in range(5000, 5000 + NUM_SCHEMAS)]


def official_schemas() -> list[Any]:
    folder, uri = DRAFT
    return [
        with_draft(group["schema"], uri)
        for path in sorted((suite() / folder).glob("*.json"))
        for group in json.loads(path.read_text(encoding="utf-8"))
    ]


def asked_of(spec: UnitSpec, schemas: Sequence[Any]) -> dict[str, Asked]:
    """A request for each schema that is not refused before it reaches a unit."""
    asked = {}
    for number, schema in enumerate(schemas):
        try:
            constraint = Constraint(grammars.json_schema(schema, "schema"))
        except InvalidValue:
            continue
        asked[f"{spec.models[0].name}/{number}"] = Asked(schema, constraint)
    return asked


def answers(spec: UnitSpec, asked: Mapping[str, Asked], kill: Callable[[int], None] | None) -> Sink:
    """Ask for all at once. kill: called with 0, 1, … in the middle of it."""
    with running(spec) as (unit, sink):
        for seed, (name, each) in enumerate(asked.items()):
            sampling = SamplingParams(seed=seed, max_tokens=MOST_TOKENS, constraint=each.constraint)
            unit.submit(request_of(name, [1 + seed % 200, 2, 3], sampling))
        for number in range(NUM_KILLS if kill else 0):
            sink.wait_for_ends((number + 1) * len(asked) // (NUM_KILLS + 1), PATIENCE_S)
            assert kill is not None
            kill(number)
        sink.wait_for_ends(len(asked), PATIENCE_S)
        check_nothing_leaks(unit)
        return sink


def judged(spec: UnitSpec, asked: Mapping[str, Asked], sink: Sink) -> Counter[str]:
    """Check every output; count what became of the requests."""
    tokenizer = Tokenizer.load(Path(spec.models[0].path))
    found = Counter[str]()
    for name, each in asked.items():
        if sink.ends[name].rejected is not None:
            found["refused"] += 1
        elif sink.reason(name) is FinishReason.LENGTH:
            found["cut"] += 1
        else:
            assert sink.reason(name) is FinishReason.STOP, sink.ends[name]
            text = tokenizer.decode(sink.tokens[name])
            problems = list(Draft202012Validator(each.schema).iter_errors(json.loads(text)))
            assert not problems, (each.schema, text, problems[0].message)
            found["valid"] += 1
    return found


def own_workers() -> list[int]:
    """Worker processes of this one's units; a spare owner has none yet."""
    tasks = Path("/proc/self/task").glob("*/children")
    owners = [pid for task in tasks for pid in task.read_text(encoding="ascii").split()]
    found = [children(int(owner)) for owner in owners]
    return [pid for each in found for name, pid in each.items() if name.startswith("mux-worker")]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> UnitSpec:
    path = build_model(tmp_path_factory.mktemp("models") / "small", "llama", seed=3)
    return spec_of([path], lane="mixed", max_seqs=32, num_columns=1200)


@pytest.fixture(scope="module", params=["random", "official"])
def asked(request: pytest.FixtureRequest, spec: UnitSpec) -> dict[str, Asked]:
    schemas = random_schemas() if request.param == "random" else official_schemas()
    return asked_of(spec, schemas)


@pytest.fixture(scope="module")
def undisturbed(spec: UnitSpec, asked: dict[str, Asked]) -> Sink:
    return answers(spec, asked, None)


def test_every_output_is_valid(spec: UnitSpec, asked: dict[str, Asked], undisturbed: Sink) -> None:
    found = judged(spec, asked, undisturbed)
    assert found["valid"] > 0.5 * len(asked), found


def test_kills_change_no_token(spec: UnitSpec, asked: dict[str, Asked], undisturbed: Sink) -> None:
    """The process that makes masks, or the worker, in turn."""

    def kill(number: int) -> None:
        for pid in mask_processes() if number % 2 else own_workers():
            os.kill(pid, signal.SIGKILL)

    again = answers(spec, asked, kill)
    assert again.tokens == undisturbed.tokens
    assert judged(spec, asked, again) == judged(spec, asked, undisturbed)
