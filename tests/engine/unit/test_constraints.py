"""Units of real tiny models whose requests have constraints: outputs are valid in any case."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.core.errors import ConfigError
from muxcluster.core.events import FinishReason
from muxcluster.core.request import ServiceClass
from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.unit.constraint_checks import mask_process
from muxcluster.engine.unit.unit import Unit
from muxcluster.text.tokenizer import Tokenizer
from tests.amounts import slow
from tests.engine.fakes import Sink
from tests.engine.live_units import children, workers_of
from tests.engine.stepping import SteppedUnit
from tests.engine.units import check_nothing_leaks, prompts, request_of, running, spec_of, submit

ModelBuilder = Callable[..., Path]

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
VALIDATOR = Draft202012Validator(SCHEMA)
# without whitespace, of which a model of noise writes a lot
COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
FOLLOWS = Constraint(json.dumps({"grammars": [{"json_schema": COMPACT}]}))
SAMPLED = SamplingParams(temperature=1.0, max_tokens=200, constraint=FOLLOWS)


def check_valid(spec: UnitSpec, sink: Sink, asked: Mapping[str, object]) -> None:
    """Every answer ended by itself and follows the schema."""
    readers = {model.name: Tokenizer.load(model.path) for model in spec.models}
    for request_id in asked:
        text = readers[request_id.split("/")[0]].decode(sink.tokens[request_id])
        assert sink.reason(request_id) is FinishReason.STOP, text
        VALIDATOR.validate(json.loads(text))


def mask_processes() -> list[int]:
    """Living processes of this one's units that make masks."""
    parents: dict[int, int] = {}
    named: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(parent)
                if state != "Z" and b"muxcluster.constraints" in (entry / "cmdline").read_bytes():
                    named.append(int(entry.name))

    def is_ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return [pid for pid in named if is_ours(pid)]


@pytest.fixture(scope="module")
def reference(tiny: ModelBuilder) -> tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]]:
    """A unit, what is asked of it, and the tokens that it answers undisturbed, in this process."""
    spec = spec_of([tiny("llama"), tiny("mistral")], lane="mixed", partition="none")
    asked = {
        name: tokens
        for model in spec.models
        for name, tokens in prompts(model.name, 6, model.vocab_size).items()
    }
    with running(spec) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
        check_valid(spec, sink, asked)
        return spec, asked, dict(sink.tokens)


def test_every_answer_follows_its_schema(
    reference: tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]],
) -> None:
    _, asked, tokens = reference
    assert len({tuple(each) for each in tokens.values()}) == len(asked), "answers do not differ"


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["adbs", *slow("temporal")])
def test_workers_give_the_same_answers_though_processes_are_killed(
    reference: tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]], lane: str
) -> None:
    """The process that makes masks, then a worker: each in the middle of all answers."""
    spec, asked, expected = reference
    models = spec_of([Path(model.path) for model in spec.models], lane=lane)
    with running(models) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_tokens(next(iter(asked)), 4)
        for pid in mask_processes():
            os.kill(pid, signal.SIGKILL)
        sink.wait_for_tokens(next(iter(asked)), 8)
        workers = workers_of(children(os.getpid())["mux-owner"], len(models.workers))
        os.kill(workers[-1], signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
        check_valid(spec, sink, asked)
        assert sink.tokens == expected


def test_preempted_batch_requests_give_the_same_answers(
    reference: tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]],
) -> None:
    """Room for few sequences, packing that lends blocks of batch requests to interactive ones."""
    spec, asked, expected = reference
    small = replace(
        spec,
        num_blocks=spec.num_blocks // 5,
        num_host_blocks=spec.num_blocks,
        scheduler=replace(spec.scheduler, packing="hybrid"),
    )
    with running(small) as (unit, sink):
        for i, (name, prompt) in enumerate(asked.items()):
            request = request_of(name, prompt, replace(SAMPLED, seed=i))
            unit.submit(replace(request, service_class=list(ServiceClass)[i % 2]))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
        check_valid(spec, sink, asked)
        assert sink.tokens == expected


def test_a_model_with_a_cache_of_its_own(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("bloom")], lane="mixed", partition="none")
    asked = prompts("bloom", 4, spec.models[0].vocab_size)
    with running(spec) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        assert {model.backend for model in unit.stats().models} == {"dense"}
        check_valid(spec, sink, asked)


def test_recorded_steps_give_the_same_answers(
    reference: tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]],
) -> None:
    """Steps as on a GPU, which masks interrupt between the forward and the draw."""
    spec, asked, expected = reference
    masks = mask_process(spec)
    try:
        assert masks.check(spec.models[0].name, FOLLOWS) is None
        runner = UnitRunner(replace(spec, mask_address=masks.address), capture=CallAgain())
        found = SteppedUnit(spec, runner).run(
            [
                request_of(name, prompt, replace(SAMPLED, seed=i))
                for i, (name, prompt) in enumerate(asked.items())
            ]
        )
    finally:
        masks.close()
    assert found == expected


@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_other_sampling_parameters_keep_the_answer_valid(tiny: ModelBuilder, seed: int) -> None:
    """A bias against what is allowed, end tokens that may come late or not at all, penalties."""
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    variants = {
        "bias": {"logit_bias": tuple((token, -100.0) for token in range(300))},
        "late": {"min_tokens": 190},
        "eos": {"ignore_eos": True},
        "both": {"ignore_eos": True, "min_tokens": 190},
        "cut": {"top_k": 1, "top_p": 0.5, "min_p": 0.5},
        "penalties": {"repetition_penalty": 5.0, "frequency_penalty": 2.0},
        "greedy": {"temperature": 0.0},
        "logprobs": {"logprobs": 3},
    }
    asked = {f"{name}/{variant}": [1, 2, 3] for variant in variants}
    with running(spec) as (unit, sink):
        for variant, fields in variants.items():
            sampling = replace(SAMPLED, seed=seed, **fields)  # type: ignore[arg-type]
            unit.submit(request_of(f"{name}/{variant}", [1, 2, 3], sampling))
        sink.wait_for_ends(len(variants))
        check_valid(spec, sink, asked)


def test_rows_without_a_constraint_are_not_affected(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    free = prompts(name, 4, spec.models[0].vocab_size, seed=1)
    bound = prompts(name, 4, spec.models[0].vocab_size, seed=2)
    plain = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True)
    with running(spec) as (unit, sink):
        submit(unit, free, plain, seeded=True)
        sink.wait_for_ends(len(free))
        alone = dict(sink.tokens)
        sink.clear()
        submit(unit, bound, SAMPLED, seeded=True)
        submit(unit, free, plain, seeded=True)
        sink.wait_for_ends(len(free) + len(bound))
        check_valid(spec, sink, bound)
        assert {request_id: sink.tokens[request_id] for request_id in free} == alone


def test_a_grammar_that_is_none_is_refused(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    wrong = replace(SAMPLED, constraint=Constraint('{"grammars": [{"lark_grammar": "start: ("}]}'))
    with running(spec) as (unit, sink):
        unit.submit(request_of(f"{name}/wrong", [1, 2], wrong))
        unit.submit(request_of(f"{name}/right", [1, 2], SAMPLED))
        sink.wait_for_ends(2)
        rejected = sink.ends[f"{name}/wrong"].rejected
        assert rejected is not None and rejected.code == "invalid_value"
        check_valid(spec, sink, {f"{name}/right": None})
        assert unit.num_open == 0


def test_a_request_that_is_aborted_while_its_grammar_is_checked_ends_once(
    tiny: ModelBuilder,
) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    ids = [f"{name}/{i}" for i in range(20)]
    with running(spec) as (unit, sink):
        for request_id in ids:
            unit.submit(request_of(request_id, [1, 2], SAMPLED))
            unit.abort(request_id)
        sink.wait_for_ends(len(ids))
        assert {sink.reason(request_id) for request_id in ids} <= {
            FinishReason.ABORT,
            FinishReason.STOP,
        }
        assert sink.reason(ids[0]) is FinishReason.ABORT


def test_a_unit_that_closes_ends_its_mask_process(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    with running(spec) as (unit, sink):
        assert not mask_processes(), "they start when they are needed"
        unit.submit(request_of(f"{name}/1", [1, 2], SAMPLED))
        sink.wait_for_ends(1)
        assert mask_processes()
    assert not mask_processes()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forced_tokens_that_are_joined_change_no_answer(
    tiny: ModelBuilder, temperature: float
) -> None:
    """One token a step, and several where the schema leaves no choice: in fewer jobs."""
    joined = spec_of([tiny("llama"), tiny("mistral")], lane="mixed", partition="none")
    single = replace(joined, scheduler=replace(joined.scheduler, joins_forced=False))
    names = [model.name for model in joined.models]
    requests = [
        request_of(name, prompt, replace(SAMPLED, seed=i, temperature=temperature))
        for model in joined.models
        for i, (name, prompt) in enumerate(prompts(model.name, 4, model.vocab_size).items())
    ]
    masks = mask_process(joined)
    try:
        assert all(masks.check(name, FOLLOWS) is None for name in names)
        found = {}
        for spec in (joined, single):
            unit = SteppedUnit(spec, UnitRunner(replace(spec, mask_address=masks.address)))
            tokens = unit.run(requests)
            stats = unit.scheduler.stats(0.0, "u").models
            found[spec.joins_forced] = tokens, len(unit.jobs), [each.num_forced for each in stats]
    finally:
        masks.close()
    assert found[True][0] == found[False][0]
    assert found[True][1] < 0.8 * found[False][1]
    assert min(found[True][2]) > 0 == max(found[False][2])


def test_max_tokens_and_stop_tokens_cut_a_run(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    masks = mask_process(spec)
    try:
        assert masks.check(name, FOLLOWS) is None
        runner = UnitRunner(replace(spec, mask_address=masks.address))

        def output(**fields: object) -> list[int]:
            sampling = replace(SAMPLED, seed=3, **fields)  # type: ignore[arg-type]
            (tokens,) = (
                SteppedUnit(spec, runner).run([request_of(f"{name}/1", [1, 2], sampling)]).values()
            )
            return list(tokens)

        whole = output()
        for most in range(1, 14):
            assert output(max_tokens=most) == whole[:most]
            stop = whole[most]
            assert output(stop_token_ids=(stop,)) == whole[: whole.index(stop) + 1]
    finally:
        masks.close()


def test_log_probabilities_are_those_of_sampled_tokens(tiny: ModelBuilder) -> None:
    """A row that asked for them samples its forced tokens one by one."""
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    asked = {f"{name}/{number}": [1, 2, 3] for number in range(2)}
    with running(spec) as (unit, sink):
        submit(unit, asked, replace(SAMPLED, logprobs=2), seeded=True)
        sink.wait_for_ends(len(asked))
        check_valid(spec, sink, asked)
        assert unit.stats().models[0].num_forced == 0


def test_a_request_goes_on_in_another_unit(
    reference: tuple[UnitSpec, dict[str, list[int]], dict[str, list[int]]],
) -> None:
    """As after the loss of its unit: with the output tokens that it has."""
    spec, asked, expected = reference
    with running(spec) as (unit, sink):
        for i, (name, prompt) in enumerate(asked.items()):
            kept = np.array(expected[name][: 1 + i], dtype=np.int32)
            request = request_of(name, prompt, replace(SAMPLED, seed=i))
            unit.submit(replace(request, output_tokens=kept))
        sink.wait_for_ends(len(asked))
        for i, name in enumerate(asked):
            assert expected[name][: 1 + i] + sink.tokens[name] == expected[name]


def test_a_check_that_fails_ends_its_request(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: what was accepted ends."""

    def fails(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(MaskProcess, "check", fails)
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    with running(spec) as (unit, sink):
        unit.submit(request_of(f"{name}/1", [1, 2], SAMPLED))
        sink.wait_for_ends(1)
        end = sink.ends[f"{name}/1"].finished
        assert end is not None and end.reason is FinishReason.ERROR
        assert "no more processes" in end.message
        assert unit.num_open == 0


def test_a_unit_that_cannot_be_made_leaves_no_folder(
    tiny: ModelBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = replace(spec_of([tiny("llama")], lane="mixed"), partition="mps")
    with pytest.raises(ConfigError):
        Unit(spec, lambda deltas: None)
    assert list(tmp_path.iterdir()) == []
