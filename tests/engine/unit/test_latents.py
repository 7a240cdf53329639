"""Units of models that keep latents, beside one that does not: Hugging Face's tokens."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.test_http import NUM_TOKENS as NUM_STREAMED
from tests.engine.dense.test_http import Recording, body_of, serving, streamed
from tests.engine.hybrid_units import hybrid_spec, serve_both, total
from tests.engine.latents import needs_latents
from tests.engine.live_units import workers_of
from tests.engine.lockstep import Lockstep
from tests.engine.parallel.ranks import over_ranks
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

pytestmark = [pytest.mark.usefixtures("fast_children"), needs_latents]

FAMILIES = ("deepseek_v2", "deepseek_v3")
MODELS = ("llama", *FAMILIES)
NUM_TOKENS = scaled(24, 8)
SHARED = scaled(66, 8)
"""Tokens that prompts share: at least two blocks of any model here."""


@pytest.fixture(scope="module")
def oracles(tiny: ModelBuilder) -> Mapping[str, GreedyOracle]:
    return {family: GreedyOracle(tiny(family)) for family in MODELS}


@pytest.mark.slow
def test_preempted_killed_and_with_cached_prefixes(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = spec_of([tiny(family) for family in MODELS], num_columns=40)
    spec = replace(spec, scheduler=replace(spec.scheduler, pipeline_depth=2))
    asked = {
        name: prompt
        for model in MODELS
        for name, prompt in prompts(model, 3, 512, shared=SHARED, longest=scaled(30, 8)).items()
    }
    again = {f"{name}/again": prompt for name, prompt in asked.items() if name.endswith("/0")}
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        first = f"{FAMILIES[-1]}/0/0"
        sink.wait_for_tokens(first, 4)
        os.kill(workers_of(executor.owner_pid, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(first, 8)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        submit(unit, again, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked) + len(again))
        stats = {model.name: model for model in unit.stats().models}
        check_nothing_leaks(unit)
    assert {name for name, model in stats.items() if model.prefix_hits > 0} == set(MODELS)
    assert any(stats[family].num_preemptions > 0 for family in FAMILIES)
    check_lengths(sink, [*asked, *again], NUM_TOKENS)
    for request_id, prompt in (asked | again).items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


@pytest.mark.slow
def test_latents_are_lent_saved_and_restored(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = hybrid_spec({family: tiny(family) for family in MODELS}, num_blocks=300)
    served = serve_both(spec, Lockstep(make_executor(spec)), num_waves=6)
    served.crowd.check(oracles)
    of_latents = [model for model in served.stats.models if model.name in FAMILIES]
    counted = total(of_latents)
    assert counted["lent_columns"] > 0
    assert counted["saved_slots"] > 0
    assert counted["restored_slots"] > 0


def test_divided_over_ranks(tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]) -> None:
    """Every rank has a part of the heads, and all latents."""
    spec = spec_of([tiny(family) for family in FAMILIES], lane="temporal", partition="none")
    spec = over_ranks(spec, 2)
    asked = {k: v for name in FAMILIES for k, v in prompts(name, 3, 512).items()}
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(16))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check_lengths(sink, asked, 16)
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])


def test_over_http(tiny: ModelBuilder, tmp_path: Path, oracles: Mapping[str, GreedyOracle]) -> None:
    """From a configuration, planned like any other model."""
    models = [f"  - {{name: {name}, path: {tiny(name)}, max_model_len: 512}}" for name in MODELS]
    file = tmp_path / "muxcluster.yaml"
    policy = "policy: {kv_gb: 0.05, num_threads: 2, partition: none}"
    file.write_text("\n".join(["models:", *models, policy]), "utf-8")
    asked = [(name, prompt) for name in MODELS for prompt in prompts(name, 2, 512).values()]

    async def run() -> Recording:
        async with serving(file) as (unit, http):
            streams = [streamed(http, body_of(name, each, NUM_STREAMED)) for name, each in asked]
            await asyncio.gather(*streams)
            found = {model.name: model.backend for model in unit.unit.stats().models}
            assert found == dict.fromkeys(MODELS, "paged")
            return unit

    unit = asyncio.run(run())
    for name, prompt in asked:
        oracles[name].check(prompt, unit.tokens[tuple(prompt)])
