"""Keys and values in 8 bits: outputs are Hugging Face's whose cache rounds as the formula says."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace

import pytest

from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.live_units import workers_of
from tests.engine.lockstep import Lockstep, Script
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
from tests.models import model_spec
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

FORMATS = {"llama": "int8", "opt": "fp8_e4m3"}
NUM_TOKENS = 16


def check(
    tiny: ModelBuilder, formats: Mapping[str, str], asked: dict[str, list[int]], sink: Sink
) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    oracles = {name: GreedyOracle(tiny(name), kind) for name, kind in formats.items()}
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


def test_two_formats_share_a_pool_though_processes_are_killed(tiny: ModelBuilder) -> None:
    """With preemptions, and prefixes that were cached in 8 bits."""
    spec = spec_of([tiny(name) for name in FORMATS], num_columns=26, kv_dtypes=[*FORMATS.values()])
    asked = {
        name: prompt
        for model in FORMATS
        for name, prompt in prompts(model, 4, 512, shared=scaled(34, 8), longest=30).items()
    }
    first = next(iter(asked))
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(first, 4)
        os.kill(workers_of(executor.owner_pid, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(first, 8)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        again = prompts("llama", 2, 512, shared=scaled(34, 8), longest=30, seed=0)
        renamed = {f"{name}/again": prompt for name, prompt in again.items()}
        submit(unit, renamed, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked) + len(renamed))
        stats = {model.name: model for model in unit.stats().models}
        check_nothing_leaks(unit)
    assert stats["llama"].prefix_hits > 0
    assert sum(model.num_preemptions for model in stats.values()) > 0
    check(tiny, FORMATS, asked | renamed, sink)


def test_divided_over_ranks(tiny: ModelBuilder) -> None:
    formats = {"mistral": "int8", "llama": "fp8_e4m3"}
    spec = spec_of(
        [tiny(name) for name in formats],
        lane="temporal",
        partition="none",
        kv_dtypes=[*formats.values()],
    )
    spec = over_ranks(spec, 2)
    asked = {k: v for name in formats for k, v in prompts(name, 3, 512).items()}
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check(tiny, formats, asked, sink)


def most_at_once(spec: UnitSpec, num_requests: int) -> int:
    """Rows of the largest job while requests of 240 tokens run to their ends, none of which waits
    for anything but blocks."""
    (model,) = spec.models
    rows = [0]

    def note(job: Job) -> None:
        rows.append(len(job.rows))

    lockstep = Lockstep(make_executor(spec), note)
    asked = {f"{model.name}/{i}": [5 + i, *range(10, 246)] for i in range(num_requests)}
    with running(spec, lockstep, lockstep) as (unit, sink):

        def script() -> Script:
            submit(unit, asked, greedy(4))
            yield lambda: sink.ends.keys() == asked.keys()

        lockstep.play(script())
        check_lengths(sink, asked, 4)
        assert unit.stats().models[0].num_preemptions == 0
    return max(rows)


def test_twice_the_sequences_run_in_the_same_pool(tiny: ModelBuilder) -> None:
    """Of a model in 16 bits; the scales of int8 take a sixteenth of it at head_dim 64."""
    path = tiny("llama", num_hidden_layers=1)
    common = {"dtype": "bfloat16", "max_seqs": 32, "max_model_len": 248, "prefix_caching": False}
    models = {
        kv_dtype: model_spec(path, "llama", kv_dtype=kv_dtype, **common)
        for kv_dtype in ("auto", "fp8_e4m3", "int8")
    }
    spec = spec_of([path], lane="mixed", partition="none")
    spec = replace(
        spec,
        scheduler=replace(spec.scheduler, token_budget=10_000),
        block_bytes=2 * 8 * models["auto"].shape.slot_bytes,
        num_blocks=8 * 30 * models["auto"].shape.blocks_per_column,
    )
    found = {
        kv_dtype: most_at_once(replace(spec, models=(model,)), 17)
        for kv_dtype, model in models.items()
    }
    assert found == {"auto": 8, "fp8_e4m3": 16, "int8": 15}
