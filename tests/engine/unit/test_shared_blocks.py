"""The KV cache's lending over real models: greedy outputs of both classes equal Hugging Face's."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.core.job import Job, Side, WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.processes.executor import ProcessExecutor
from muxcluster.engine.unit.executor_choice import make_executor
from tests.amounts import slow
from tests.blocks import block_tokens, scaled
from tests.engine.live_units import children
from tests.engine.sharing_loop import SharingLoop, Text
from tests.models import model_spec
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

DELAYS_S = (0.0, 0.0005, 0.001)
"""From a job's launch to the death of its worker: on its way, in its copies, in its forward."""
BLOCK_BYTES = 2 * block_tokens(8) * 128 * 4
NUM_LEFT, NUM_RIGHT = 14, 5
"""Sequences of each model."""
SHORTEST, LONGEST = scaled(5, 8), scaled(40, 8)
"""Tokens of a prompt: at least, and less than."""
LEFT_TOKENS, RIGHT_TOKENS = 14, 40


def unit_of(directories: Mapping[str, Path], partition: str) -> UnitSpec:
    models = tuple(
        model_spec(path, name, max_seqs=NUM_LEFT + NUM_RIGHT, max_model_len=scaled(128, 8))
        for name, path in directories.items()
    )
    return UnitSpec(
        unit_id="unit-0",
        models=models,
        num_blocks=0,
        block_bytes=BLOCK_BYTES,
        workers=tuple(WorkerSpec(worker_id, (0.5,)) for worker_id in (0, 1)),
        partition=partition,
        num_threads=1,
    )


def texts_of(spec: UnitSpec, seed: int) -> list[Text]:
    rng = np.random.default_rng(seed)
    texts = []
    for model in spec.models:
        for row in range(NUM_LEFT + NUM_RIGHT):
            side = Side.LEFT if row < NUM_LEFT else Side.RIGHT
            num_tokens = LEFT_TOKENS if side is Side.LEFT else RIGHT_TOKENS
            prompt = rng.integers(3, model.vocab_size, rng.integers(SHORTEST, LONGEST)).tolist()
            texts.append(Text(model, row, side, prompt, num_tokens, list(prompt)))
    return texts


def sized(spec: UnitSpec, texts: list[Text]) -> UnitSpec:
    """A pool for two thirds of what batch sequences alone need, with a host block for each one."""
    blocks = 0
    for text in texts:
        if text.side is Side.RIGHT:
            tokens = text.model.shape.block_tokens(spec.block_bytes)
            columns = -(-(len(text.prompt) + text.num_tokens) // tokens)
            blocks += columns * text.model.shape.blocks_per_column
    return replace(spec, num_blocks=blocks * 2 // 3, num_host_blocks=blocks)


def check(loop: SharingLoop, texts: list[Text], oracles: Mapping[str, GreedyOracle]) -> None:
    for oracle in oracles.values():
        oracle.num_near_ties = 0
    for text in texts:
        oracles[text.model.name].check(text.prompt, text.output)
    assert sum(oracle.num_near_ties for oracle in oracles.values()) <= len(texts) // 20
    assert loop.cache.free == loop.cache.num_blocks
    assert min(loop.num_saved, loop.num_restored) > scaled(100, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "failures"),
    [("none", 0.1), ("threads", 0.0), *slow(("none", 0.0), ("threads", 0.1))],
)
def test_both_classes_put_out_what_hugging_face_does(
    directories: Mapping[str, Path],
    oracles: Mapping[str, GreedyOracle],
    partition: str,
    failures: float,
) -> None:
    """Also where jobs fail after their copies: what they half saved is computed again."""
    spec = unit_of(directories, partition)
    texts = texts_of(spec, seed=5)
    spec = sized(spec, texts)
    executor = make_executor(spec)
    executor.start()
    try:
        loop = SharingLoop(executor, spec, 7, failures=failures)
        loop.run(texts)
    finally:
        executor.close()
    check(loop, texts, oracles)
    assert (loop.num_failed > 0) == (failures > 0)
    assert (loop.num_spoiled > 0) == (failures > 0)


@pytest.mark.slow
def test_workers_killed_in_the_middle_of_their_copies(
    directories: Mapping[str, Path], oracles: Mapping[str, GreedyOracle]
) -> None:
    """Whatever part of a save or a restore was made: a save is forgotten, a restore repeated."""
    spec = unit_of(directories, "threads")
    texts = texts_of(spec, seed=6)
    spec = sized(spec, texts)
    executor = ProcessExecutor(spec)
    wanted = ["saves", "restores"] * 3
    killed: list[int] = []

    def kill(job: Job) -> None:
        """The first worker that saves, the next that restores, and so on."""
        pid = children(executor.owner_pid).get(f"mux-worker-{job.worker_id}")
        if not (pid and wanted) or pid in killed:  # one that nobody has noticed yet
            return
        if any(len(getattr(copies, wanted[0])) for copies in job.copies):
            time.sleep(DELAYS_S[len(killed) % len(DELAYS_S)])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            del wanted[0]

    executor.start()
    try:
        loop = SharingLoop(executor, spec, 8, on_launch=kill)
        loop.run(texts)
    finally:
        executor.close()
    check(loop, texts, oracles)
    assert len(set(killed)) == 6
    assert loop.num_failed > 0
