"""Models with states in a unit beside a Llama: outputs are Hugging Face's, whatever happens."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.states.rows import StatefulRows
from muxcluster.engine.states.store import StateStore
from muxcluster.engine.unit.executor_choice import make_executor
from tests.amounts import slow
from tests.blocks import scaled
from tests.engine.conftest import ModelBuilder
from tests.engine.fakes import Sink
from tests.engine.hybrid_units import hybrid_spec, serve_both, total
from tests.engine.live_units import CopyKills, workers_of
from tests.engine.lockstep import Lockstep
from tests.engine.states.units import with_states
from tests.engine.stepping import SteppedUnit
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    request_of,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

FAMILIES = ("qwen3_next", "bamba", "granitemoehybrid", "falcon_h1", "jamba")
FIRST = (FAMILIES[0], *slow(*FAMILIES[1:]))
NUM_TOKENS = 24
Asked = dict[str, list[int]]


class Oracles(dict[str, GreedyOracle]):
    """By family, made when they are asked for."""

    def __init__(self, tiny: ModelBuilder) -> None:
        super().__init__()
        self._tiny = tiny

    def __missing__(self, family: str) -> GreedyOracle:
        self[family] = GreedyOracle(self._tiny(family))
        return self[family]


@pytest.fixture(scope="module")
def oracles(tiny: ModelBuilder) -> Oracles:
    return Oracles(tiny)


def check(oracles: Oracles, asked: Asked, found: Mapping[str, list[int]]) -> None:
    for oracle in oracles.values():
        oracle.num_near_ties = 0
    for name, prompt in asked.items():
        oracles[name.split("/")[0]].check(prompt, found[name])
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= 1


def check_unit(oracles: Oracles, asked: Asked, sink: Sink) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    check(oracles, asked, sink.tokens)


def stepped(tiny: ModelBuilder, family: str, *, num_columns: int = 200) -> SteppedUnit:
    spec = spec_of([tiny(family)], lane="mixed", partition="none", num_columns=num_columns)
    return SteppedUnit(with_states(spec))


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_prompts_beside_decodes(
    tiny: ModelBuilder, oracles: Oracles, family: str
) -> None:
    """Prompts longer than a job, of one token too; and no block is left at the end."""
    unit = stepped(tiny, family)
    asked = prompts(family, 3, 512, longest=scaled(150, 8))
    asked |= {f"{family}/one": [7], f"{family}/two": [9, 11]}
    unit.run([request_of(name, each, greedy(12)) for name, each in asked.items()])
    check(oracles, asked, unit.tokens)
    is_mixed = [
        len(job.rows) > 1 and bool(((job.rows.counts > 1) & (job.rows.starts > 0)).any())
        for job in unit.jobs
    ]
    assert any(is_mixed), "no chunk that goes on was beside other rows"
    stats = unit.scheduler.stats(0.0, "u")
    assert stats.free_blocks == stats.num_blocks


@pytest.mark.parametrize("family", FIRST)
def test_a_changed_state_changes_the_output(tiny: ModelBuilder, family: str) -> None:
    (asked,) = prompts(family, 1, 512, shared=40).items()
    request = request_of(asked[0], asked[1], greedy(12))
    expected = list(stepped(tiny, family).run([request])[asked[0]])
    for layer in (0, -1):
        unit = stepped(tiny, family)
        unit.add([request])
        while not unit.tokens[asked[0]]:
            unit.step()
        store = store_of(unit, family)
        halves = store.halves(np.array([0]))
        states = store.read(halves, range(len(store._layout.layers))[layer])
        assert states.recurrent is not None
        noise = torch.randn(states.recurrent.shape, generator=torch.Generator().manual_seed(0))
        states.recurrent = states.recurrent + noise.to(states.recurrent.dtype)
        store.write(halves, range(len(store._layout.layers))[layer], states)
        while unit.step():
            pass
        assert unit.tokens[asked[0]] != expected


@pytest.mark.parametrize("family", FIRST)
def test_a_state_of_other_tokens_is_computed_anew(
    tiny: ModelBuilder, oracles: Oracles, family: str
) -> None:
    """As a job that failed amid its forward leaves it: prompts in chunks and outputs."""
    unit = stepped(tiny, family)
    asked = prompts(family, 3, 512, longest=scaled(150, 8))
    unit.add([request_of(name, each, greedy(NUM_TOKENS)) for name, each in asked.items()])
    store = store_of(unit, family)
    num_steps = 0
    while unit.step():
        num_steps += 1
        if num_steps % 3 == 0:
            rows = np.array([num_steps % 2, 2])
            store.mark(store.halves(rows), np.array([-1, 3]))
    check(oracles, asked, unit.tokens)


def store_of(unit: SteppedUnit, family: str) -> StateStore:
    rows = unit.runner._models[family]._steps._forward  # type: ignore[attr-defined]
    assert isinstance(rows, StatefulRows)
    return rows._store


@pytest.mark.parametrize("family", ["qwen3_next", *slow("bamba")])
def test_preempted_and_killed(tiny: ModelBuilder, oracles: Oracles, family: str) -> None:
    """A worker, then the owner of the memory; prompts and outputs are then computed again."""
    spec = with_states(spec_of([tiny(family), tiny("llama")], num_columns=26))
    asked = prompts(family, 5, 512, longest=50) | prompts("llama", 4, 512, longest=50)
    first = next(iter(asked))
    executor = ProcessExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_tokens(first, 4)
        os.kill(workers_of(executor.owner_pid, len(spec.workers))[-1], signal.SIGKILL)
        sink.wait_for_tokens(first, 8)
        os.kill(executor.owner_pid, signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        stats = {model.name: model for model in unit.stats().models}
        check_nothing_leaks(unit)
    assert (stats[family].backend, stats["llama"].backend) == ("paged, states", "paged")
    assert sum(model.num_preemptions for model in stats.values()) > 0
    check_unit(oracles, asked, sink)


def lending_spec(tiny: ModelBuilder, *, num_blocks: int, **options: object) -> UnitSpec:
    directories = {family: tiny(family) for family in ("qwen3_next", "bamba", "llama")}
    return with_states(hybrid_spec(directories, num_blocks=num_blocks, **options))  # type: ignore[arg-type]


@pytest.mark.slow
def test_both_classes_lend_blocks_to_each_other(tiny: ModelBuilder, oracles: Oracles) -> None:
    """Two kinds of states and keys and values alone over each other's blocks."""
    spec = lending_spec(tiny, num_blocks=440)
    served = serve_both(spec, Lockstep(make_executor(spec)), num_waves=2)
    served.crowd.check(oracles)
    counted = total(served.stats.models)
    assert counted["saved_slots"] > 0
    assert counted["restored_slots"] > 0
    lent = {model.name: model.num_lent_columns for model in served.stats.models}
    assert lent["qwen3_next"] > 0
    assert lent["bamba"] > 0


@pytest.mark.slow
def test_workers_killed_in_jobs_that_save_and_restore(tiny: ModelBuilder, oracles: Oracles) -> None:
    workers = tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1))
    spec = lending_spec(tiny, num_blocks=440, lane="adbs", workers=workers, partition="threads")
    executor = ProcessExecutor(spec)
    kills = CopyKills(executor)
    served = serve_both(spec, Lockstep(executor, kills), num_waves=4)
    served.crowd.check(oracles)
    assert kills.is_over


@pytest.mark.parametrize("family", FIRST[:2])
def test_steps_sent_ahead_read_what_the_step_before_wrote(
    tiny: ModelBuilder, oracles: Oracles, family: str
) -> None:
    spec = with_states(spec_of([tiny(family)], lane="mixed", num_columns=60))
    spec = replace(spec, scheduler=replace(spec.scheduler, pipeline_depth=2))
    asked = prompts(family, 6, 512, longest=scaled(30, 8))
    with running(spec) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_nothing_leaks(unit)
    check_unit(oracles, asked, sink)
