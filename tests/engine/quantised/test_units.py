"""Quantised models in units: with workers that are killed, and divided over ranks."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.executor import RanksExecutor
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.live_units import children, workers_of
from tests.engine.parallel.ranks import over_ranks
from tests.engine.quantised.checkpoints import Checkpoint, write
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

NUM_TOKENS = 24


@pytest.fixture(scope="module")
def checkpoints(
    tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Checkpoint]:
    """Of three families and three methods, by the names of their directories."""
    found = {}
    for family, method in (("llama", "packed-4"), ("qwen2", "fp8-tensor"), ("opt", "gptq-8")):
        folder = tmp_path_factory.mktemp("quantised") / family
        made = write(tiny(family), folder, method)
        named = made.quantised.rename(folder / family)
        found[family] = Checkpoint(named, made.dense)
    return found


def _check(checkpoints: dict[str, Checkpoint], asked: dict[str, list[int]], sink: Sink) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    oracles = {name: GreedyOracle(each.dense) for name, each in checkpoints.items()}
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


def _asked(spec: UnitSpec) -> dict[str, list[int]]:
    return {
        name: tokens
        for model in spec.models
        for name, tokens in prompts(model.name, 4, model.vocab_size).items()
    }


def test_tokens_stay_though_a_worker_and_the_owner_are_killed(
    checkpoints: dict[str, Checkpoint],
) -> None:
    spec = spec_of([each.quantised for each in checkpoints.values()])
    asked = _asked(spec)
    with running(spec) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(next(iter(asked)), 4)
        owner = children(os.getpid())["mux-owner"]
        os.kill(workers_of(owner, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(next(iter(asked)), 8)
        os.kill(owner, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    _check(checkpoints, asked, sink)


def test_divided_over_ranks(checkpoints: dict[str, Checkpoint]) -> None:
    directories = [each.quantised for each in checkpoints.values()]
    spec = over_ranks(spec_of(directories, lane="temporal", partition="none"), 2)
    asked = _asked(spec)
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    _check(checkpoints, asked, sink)


def test_quantised_when_loaded_it_answers_alike_on_one_rank_and_two(
    tiny: ModelBuilder, tmp_path: Path
) -> None:
    """Weights are quantised whole, then divided."""
    spec = spec_of([tiny("mistral")], lane="temporal", partition="none")
    models = tuple(replace(model, quantize="int4") for model in spec.models)
    spec = replace(spec, models=models)
    asked = _asked(spec)
    found = []
    for one, executor in ((spec, None), (over_ranks(spec, 2), RanksExecutor)):
        with running(one, executor and executor(one)) as (unit, sink):
            submit(unit, asked, greedy(NUM_TOKENS))
            sink.wait_for_ends(len(asked))
            check_nothing_leaks(unit)
            found.append(dict(sink.tokens))
    assert found[0] == found[1]
