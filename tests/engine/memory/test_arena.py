"""The arena's shapes, and that forked children write into the same memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from muxcluster.engine.memory.arena import Arena
from tests.blocks import only_with
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import BLOCK_BYTES, drivers, ragged, unit_of

FORKED = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.engine.driver import drivers, unit_of

(driver,) = drivers(unit_of(Path(sys.argv[1])))
prompt = [int(token) for token in sys.argv[2].split(",")]
sequence = driver.admit(prompt)
driver.grow(sequence, len(prompt) + 9)
arena = driver.runner.arena.model(driver.spec.name)

def in_child(steps):
    pid = os.fork()
    if pid == 0:
        try:
            steps()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)

def prefill():
    driver.step([sequence], chunk=1000)

def decode():  # this child has seen neither the prompt nor the block table
    driver.admit([], row=sequence.row)
    driver.num_sent = len(driver.deltas)
    sequence.tokens = arena.history[sequence.row, : len(prompt) + 1].tolist()
    sequence.num_computed = len(prompt)
    for _ in range(9):
        driver.step([sequence], chunk=1)

in_child(prefill)
in_child(decode)
print(arena.history[sequence.row, len(prompt) : len(prompt) + 10].tolist())
"""


@only_with(16)
def test_shapes_and_zeros(tiny: ModelBuilder) -> None:
    unit = unit_of(tiny("llama"), tiny("qwen3", head_dim=128), max_seqs=5, max_model_len=100)
    arena = Arena(unit)
    assert arena.pool.shape == (unit.num_blocks, BLOCK_BYTES)
    llama, qwen = (arena.model(model.name) for model in unit.models)
    assert (llama.block_tokens, qwen.block_tokens) == (16, 8)
    assert llama.tables.shape == (5, 3, 2, 7)
    assert qwen.tables.shape == (5, 4, 2, 13)
    assert llama.history.shape == (6, 101)
    assert llama.from_right.shape == (5,)
    for tensor in (arena.pool, qwen.tables, qwen.history, qwen.from_right):
        assert not tensor.any()
    assert (llama.tables.dtype, llama.history.dtype) == (torch.int32, torch.int32)


@pytest.mark.slow
def test_one_child_prefills_and_another_decodes(tiny: ModelBuilder) -> None:
    directory = tiny("llama")
    unit = unit_of(directory)
    (prompt,) = ragged(unit.models[0].vocab_size, 2, seed=9)[1:]
    (driver,) = drivers(unit)
    (expected,) = driver.run([prompt], 10)
    text = ",".join(map(str, prompt))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(directory), text],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.stdout.split("\n")[0] == str(expected.output), done.stderr
