"""Quantised models in units: with workers that are killed, and divided over ranks."""

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.live_units import workers_of
from tests.engine.parallel.ranks import over_ranks
from tests.engine.quantised.checkpoints import EXACT, Checkpoint, write
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

pytestmark = pytest.mark.usefixtures("fast_children")

NUM_TOKENS = 24
FAMILIES = ("llama", "qwen2", "opt")
ONE_EACH = (("llama", "packed-4"), ("qwen2", "fp8-tensor"), ("opt", "gptq-8"))

Checkpoints = dict[str, Checkpoint]
Maker = Callable[[Iterable[tuple[str, str]]], Checkpoints]


@pytest.fixture(scope="module")
def made(tiny: ModelBuilder, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Checkpoints of (family, method), by family: the names of their directories."""

    def of(asked: Iterable[tuple[str, str]]) -> Checkpoints:
        found = {}
        for family, method in asked:
            folder = tmp_path_factory.mktemp("quantised") / family
            both = write(tiny(family), folder, method)
            found[family] = Checkpoint(both.quantised.rename(folder / family), both.dense)
        return found

    return of


def _check(checkpoints: Checkpoints, asked: dict[str, list[int]], sink: Sink) -> None:
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


def test_tokens_stay_though_a_worker_and_the_owner_are_killed(made: Maker) -> None:
    _check_killed(made(ONE_EACH))


@pytest.mark.slow
@pytest.mark.parametrize("method", EXACT)
def test_every_method_killed_and_resumed(made: Maker, method: str) -> None:
    _check_killed(made((family, method) for family in FAMILIES))


def _check_killed(checkpoints: Checkpoints) -> None:
    spec = spec_of([each.quantised for each in checkpoints.values()])
    asked = _asked(spec)
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(next(iter(asked)), 4)
        os.kill(workers_of(executor.owner_pid, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(next(iter(asked)), 8)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    _check(checkpoints, asked, sink)


def test_divided_over_ranks(made: Maker) -> None:
    _check_divided(made(ONE_EACH))


@pytest.mark.slow
@pytest.mark.parametrize("method", EXACT)
def test_every_method_divided_over_ranks(made: Maker, method: str) -> None:
    _check_divided(made((family, method) for family in FAMILIES))


def _check_divided(checkpoints: Checkpoints) -> None:
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
