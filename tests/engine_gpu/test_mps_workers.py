"""The unit's `mps` workers with memory files in the place of CUDA IPC, and threads of SMs."""

from dataclasses import replace

import pytest

from muxcluster.core.job import Phase, WorkerSlot
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.mps import GPU_PATIENCE, MpsGround
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import (
    NUM_TOKENS,
    SAMPLED,
    RecordingExecutor,
    asked_of,
    wait_until_gone,
    workers_of,
)
from tests.engine.units import check_lengths, check_nothing_leaks, running, spec_of, submit
from tests.engine_gpu.conftest import FakeControl

LADDER = (0.5, 1.0)
SLOTS = (
    WorkerSlot(0, LADDER, frozenset({Phase.PREFILL})),
    WorkerSlot(1, LADDER, frozenset({Phase.DECODE})),
)


@pytest.fixture
def spec(tiny: ModelBuilder) -> UnitSpec:
    made = spec_of([tiny("llama"), tiny("qwen3")])
    return replace(made, workers=SLOTS, num_threads=2)


def tokens_of(spec: UnitSpec, asked: dict[str, list[int]]) -> dict[str, list[int]]:
    """Of an in-process unit."""
    with running(replace(spec, partition="none")) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
    return sink.tokens


def test_workers_that_map_the_owners_memory_say_the_same_tokens(
    spec: UnitSpec, control: FakeControl
) -> None:
    asked = asked_of(spec, 8)
    expected = tokens_of(spec, asked)
    executor = RecordingExecutor(spec, GPU_PATIENCE, MpsGround("0"))
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, SAMPLED, seeded=True)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        check_nothing_leaks(unit)
        processes = [executor.owner_pid, *workers_of(executor.owner_pid, 4)]
    assert sink.tokens == expected
    assert executor.misfortunes == []
    wait_until_gone(processes)
    assert control.asked()[-1] == "ask quit -t 5"
