"""A sequence yields the same tokens from either side of its blocks, beside its twin in a batch."""

import pytest
import torch
from torch import Tensor

from muxcluster.core.job import Side
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import BLOCK_BYTES, Driver, Running, drivers, ragged, unit_of

NUM_TOKENS = 24
FAMILIES = pytest.mark.parametrize("family", ["llama", "opt"])
"""Groups of three query heads, and none."""


def twins(tiny: ModelBuilder, family: str) -> tuple[Driver, list[tuple[Running, Running]]]:
    """The driver, and (left, right) of five prompts of 1 to 75 tokens."""
    unit = unit_of(tiny(family))
    (driver,) = drivers(unit)
    prompts = ragged(unit.models[0].vocab_size, 5, seed=8)
    return driver, [
        (driver.admit(prompt, side=Side.LEFT), driver.admit(prompt, side=Side.RIGHT))
        for prompt in prompts
    ]


def keys(driver: Driver, sequence: Running) -> Tensor:
    """Keys of layer 1, KV head 0, in the order they lie in: [columns, block_tokens, head_dim]."""
    arena, shape = driver.runner.arena.model(driver.spec.name), driver.spec.shape
    width = shape.block_tokens(BLOCK_BYTES)
    blocks = arena.tables[sequence.row, 1, 0, : sequence.num_columns].long()
    halves = driver.runner.arena.pool[blocks].view(torch.float32).view(len(blocks), 2, -1)
    return halves[:, 0, : width * shape.head_dim].reshape(len(blocks), width, shape.head_dim)


@FAMILIES
@pytest.mark.parametrize("chunk", [13, 1000])
def test_left_and_right_in_one_batch_yield_the_same_tokens(
    tiny: ModelBuilder, family: str, chunk: int
) -> None:
    driver, pairs = twins(tiny, family)
    everyone = [sequence for pair in pairs for sequence in pair]
    while any(len(s.output) < NUM_TOKENS for s in everyone):
        driver.step([s for s in everyone if len(s.output) < NUM_TOKENS], chunk)
    assert len({tuple(left.output) for left, _ in pairs}) == len(pairs)
    for left, right in pairs:
        assert left.output == right.output


@FAMILIES
def test_the_right_one_lies_mirrored_block_by_block(tiny: ModelBuilder, family: str) -> None:
    driver, pairs = twins(tiny, family)
    everyone = [sequence for pair in pairs for sequence in pair]
    driver.step(everyone, chunk=1000)
    driver.step(everyone, chunk=1)
    for left, right in pairs:
        straight, mirrored = keys(driver, left), keys(driver, right).flip(1)
        num_written = left.num_prompt + 1
        assert straight.flatten(0, 1)[:num_written].any(-1).all()
        assert not straight.flatten(0, 1)[num_written:].any()
        torch.testing.assert_close(mirrored, straight)
