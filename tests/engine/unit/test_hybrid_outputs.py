"""Hybrid packing through a unit: greedy outputs of both classes equal Hugging Face's."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from muxcluster.core.job import Job, WorkerSpec
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.engine.unit.in_process import InProcessExecutor
from tests.amounts import slow
from tests.engine.hybrid_units import (
    NUM_BLOCKS,
    Crowd,
    SavedBlocks,
    hybrid_spec,
    serve_both,
    total,
)
from tests.engine.live_units import CopyKills
from tests.engine.lockstep import Lockstep
from tests.engine.units import running
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

TWO_WORKERS = tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1))
ONE_WORKER = (WorkerSpec(0, (1.0,)),)
SCARCE_BLOCKS = 280
"""So few that a wave of interactive requests needs what batch requests of both models hold."""
DELAYS_S = (0.0, 0.001, 0.003)
"""From a job's launch to the death of a process: on its way, in its copies, in its forward."""


@pytest.mark.parametrize(
    ("lane", "workers", "partition", "prefix_caching"),
    [
        ("mixed", ONE_WORKER, "none", False),
        ("adbs", TWO_WORKERS, "threads", True),
        *slow(
            ("mixed", ONE_WORKER, "none", True),
            ("temporal", ONE_WORKER, "none", False),
            ("temporal", ONE_WORKER, "none", True),
            ("adbs", TWO_WORKERS, "none", False),
            ("adbs", TWO_WORKERS, "none", True),
            ("adbs", TWO_WORKERS, "threads", False),
        ),
    ],
)
def test_both_classes_put_out_what_hugging_face_does(
    directories: Mapping[str, Path],
    oracles: Mapping[str, GreedyOracle],
    lane: str,
    workers: tuple[WorkerSpec, ...],
    partition: str,
    prefix_caching: bool,
) -> None:
    """Nearly every block is written over, saved and restored, and no token is computed twice.

    Interactive requests that share a cached prefix need less memory, so fewer blocks are lent.
    """
    spec = hybrid_spec(
        directories,
        lane=lane,
        workers=workers,
        partition=partition,
        prefix_caching=prefix_caching,
        num_blocks=SCARCE_BLOCKS,
    )
    saved = SavedBlocks(spec)
    served = serve_both(spec, Lockstep(make_executor(spec), saved))
    served.crowd.check(oracles)
    models = served.stats.models
    counted = total(models)
    assert counted["recomputed_tokens"] == 0
    assert counted["saved_slots"] == counted["restored_slots"] > 200
    is_lender = {model.name: model.num_lent_columns > 0 for model in models}
    assert is_lender["wide"]
    assert is_lender["narrow"] or prefix_caching
    assert len(saved.blocks) > (0.4 if prefix_caching else 0.8) * SCARCE_BLOCKS
    assert (sum(model.prefix_hits for model in models) > 0) == prefix_caching


@pytest.mark.parametrize("lane", ["mixed", *slow("temporal")])
def test_in_a_pool_too_small_for_either_class_too(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle], lane: str
) -> None:
    """Batch sequences lend, and interactive ones lend to each other where they must."""
    spec = hybrid_spec(directories, num_blocks=NUM_BLOCKS // 2, lane=lane)
    served = serve_both(spec, Lockstep(make_executor(spec)))
    served.crowd.check(oracles)
    assert total(served.stats.models)["restored_slots"] > 0


def test_a_corrupt_frame_of_host_memory_changes_the_output(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle]
) -> None:
    """A test of the tests: else they would show nothing of saves and restores."""
    spec = hybrid_spec(directories)
    executor = InProcessExecutor(spec)
    corrupted: list[int] = []

    def corrupt(job: Job) -> None:
        for each in job.copies:
            if len(each.restores) and not corrupted:
                shape = next(m.shape for m in spec.models if m.name == each.model)
                frame = int(each.restores[0, 0]) // shape.block_tokens(spec.block_bytes)
                assert executor._pipeline is not None
                executor._pipeline._runner.arena.host[frame] = 63
                corrupted.append(frame)

    served = serve_both(spec, Lockstep(executor, corrupt), num_waves=2)
    assert corrupted
    with pytest.raises(AssertionError, match="Hugging Face says"):
        served.crowd.check(oracles)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lane", "workers", "kv_dtype", "num_waves"),
    [
        ("adbs", TWO_WORKERS, "auto", 12),
        *slow(
            ("adbs", TWO_WORKERS, "int8", 6),
            ("mixed", ONE_WORKER, "auto", 12),
            ("mixed", ONE_WORKER, "fp8_e4m3", 12),
        ),
    ],
)
def test_workers_killed_in_jobs_that_save_and_restore(
    directories: Mapping[str, Path],
    oracles: Mapping[str, GreedyOracle],
    lane: str,
    workers: tuple[WorkerSpec, ...],
    kv_dtype: str,
    num_waves: int,
) -> None:
    """Nothing is lost and no token repeated."""
    fields = {"lane": lane, "workers": workers, "partition": "threads", "kv_dtype": kv_dtype}
    spec = hybrid_spec(directories, **fields)
    if kv_dtype != "auto":
        oracles = {name: GreedyOracle(path, kv_dtype) for name, path in directories.items()}
    executor = ProcessExecutor(spec)
    kills = CopyKills(executor, delays_s=DELAYS_S[:2])
    served = serve_both(spec, Lockstep(executor, kills), num_waves=num_waves)
    served.crowd.check(oracles)
    assert kills.is_over
    assert total(served.stats.models)["saved_slots"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("copies", [*slow("saves"), "restores"])
def test_a_memory_owner_killed_in_the_middle(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle], copies: str
) -> None:
    """Pool and host memory are gone with it: everybody runs again, and lends again."""
    spec = hybrid_spec(directories, lane="adbs", workers=TWO_WORKERS, partition="threads")
    executor = ProcessExecutor(spec)
    killed: list[int] = []
    restored_after: list[int] = []

    def kill(job: Job) -> None:
        if killed:
            restored_after.extend(int(each.restores[:, 2].sum()) for each in job.copies)
        elif any(len(getattr(each, copies)) for each in job.copies):
            killed.append(executor.owner_pid)
            os.kill(executor.owner_pid, signal.SIGKILL)

    served = serve_both(spec, Lockstep(executor, kill), num_waves=6)
    assert len(killed) == 1
    served.crowd.check(oracles)
    assert sum(restored_after) > 0


@pytest.mark.slow
def test_at_the_machines_own_pace(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle]
) -> None:
    """Clients, the unit and its workers wait for nobody: how much is lent is for them to say."""
    spec = hybrid_spec(
        directories,
        lane="adbs",
        workers=TWO_WORKERS,
        partition="threads",
        num_blocks=SCARCE_BLOCKS,
    )
    with running(spec) as (unit, sink):
        crowd = Crowd(spec, unit, sink)
        for wave in range(4):
            crowd.submit(f"batch{wave}", 2, 24)
            for name in crowd.submit(f"urgent{wave}", 4, 12, shared=16):
                sink.wait_for_tokens(name, 12)
        sink.wait_for_ends(len(crowd.asked))
        crowd.finish()
        counted = total(unit.stats().models)
    crowd.check(oracles)
    assert counted["recomputed_tokens"] == 0
    assert counted["saved_slots"] == counted["restored_slots"]
