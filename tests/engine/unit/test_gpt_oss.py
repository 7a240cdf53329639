"""gpt-oss in a unit beside a Llama: outputs are Hugging Face's.

Its layers have attention sinks, and windows shorter than the texts in every other one.
"""

import os
import signal
from collections.abc import Mapping

import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.engine.parallel.executor import RanksExecutor
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.hybrid_units import hybrid_spec, serve_both, total
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

pytestmark = pytest.mark.usefixtures("fast_children")

FAMILIES = ("gpt_oss", "llama")
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def oracles(tiny: ModelBuilder) -> Mapping[str, GreedyOracle]:
    return {family: GreedyOracle(tiny(family)) for family in FAMILIES}


def check(oracles: Mapping[str, GreedyOracle], asked: dict[str, list[int]], sink: Sink) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    for oracle in oracles.values():
        oracle.num_near_ties = 0
    for request_id, prompt in asked.items():
        oracles[request_id.split("/")[0]].check(prompt, sink.tokens[request_id])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


@pytest.mark.slow
def test_preempted_killed_and_with_cached_prefixes(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = spec_of([tiny(family) for family in FAMILIES], num_columns=26)
    shared = scaled(34, 8)
    asked = {
        name: prompt
        for family in FAMILIES
        for name, prompt in prompts(family, 5, 512, shared=shared, longest=30).items()
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
        again = prompts("gpt_oss", 3, 512, shared=shared, longest=30)
        renamed = {f"{name}/again": prompt for name, prompt in again.items()}
        submit(unit, renamed, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked) + len(renamed))
        stats = {model.name: model for model in unit.stats().models}
        check_nothing_leaks(unit)
    assert stats["gpt_oss"].prefix_hits > 0
    assert sum(model.num_preemptions for model in stats.values()) > 0
    check(oracles, asked | renamed, sink)


@pytest.mark.slow
def test_both_classes_lend_blocks_to_each_other(
    tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]
) -> None:
    spec = hybrid_spec(
        {family: tiny(family) for family in FAMILIES},
        num_blocks=200,
        lane="mixed",
        workers=(WorkerSpec(0, (1.0,)),),
    )
    served = serve_both(spec, Lockstep(make_executor(spec)), num_waves=4)
    served.crowd.check(oracles)
    counted = total(served.stats.models)
    assert counted["saved_slots"] == counted["restored_slots"] > 0
    lent = {model.name: model.num_lent_columns for model in served.stats.models}
    assert lent["gpt_oss"] > 0


def test_divided_over_ranks(tiny: ModelBuilder, oracles: Mapping[str, GreedyOracle]) -> None:
    """Heads with their sinks, and each expert, a half on either rank."""
    directories = [tiny(family) for family in FAMILIES]
    spec = over_ranks(spec_of(directories, lane="temporal", partition="none"), 2)
    asked = {
        name: prompt for family in FAMILIES for name, prompt in prompts(family, 4, 512).items()
    }
    with running(spec, RanksExecutor(spec)) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check(oracles, asked, sink)
