"""What lies in the pool decides the output: a wrong block, side or table entry shows."""

import numpy as np
import pytest
import torch

from muxcluster.core.job import Side, TableDelta
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, Running, drivers, ragged, unit_of

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "mixtral")
NUM_TOKENS = 12


def prefilled(tiny: ModelBuilder, family: str) -> tuple[Driver, Running]:
    unit = unit_of(tiny(family))
    (driver,) = drivers(unit)
    prompt = ragged(unit.models[0].vocab_size, 2, seed=4)[1][:43]
    sequence = driver.admit(prompt)
    driver.step([sequence], chunk=1000)
    return driver, sequence


def decoded(driver: Driver, sequence: Running) -> list[int]:
    while len(sequence.output) < NUM_TOKENS:
        driver.step([sequence], chunk=1)
    return sequence.output


@pytest.mark.parametrize("family", FAMILIES)
def test_one_corrupted_block_changes_the_output(tiny: ModelBuilder, family: str) -> None:
    expected = decoded(*prefilled(tiny, family))
    driver, sequence = prefilled(tiny, family)
    row, _, blocks = driver.deltas[-1]
    assert row == sequence.row
    block = driver.runner.arena.pool[blocks[0]].view(torch.float32)
    block.copy_(torch.randn(block.shape, generator=torch.Generator().manual_seed(0)))
    assert decoded(driver, sequence) != expected


def test_the_wrong_side_changes_the_output(tiny: ModelBuilder) -> None:
    expected = decoded(*prefilled(tiny, "llama"))
    driver, sequence = prefilled(tiny, "llama")
    driver.runner.arena.model(driver.spec.name).from_right[sequence.row] = True
    assert decoded(driver, sequence) != expected


def test_a_row_admitted_again_forgets_its_former_sequence(tiny: ModelBuilder) -> None:
    driver, first = prefilled(tiny, "llama")
    expected = decoded(*prefilled(tiny, "llama"))
    decoded(driver, driver.admit([5, 6, 7], side=Side.RIGHT, row=first.row))
    again = driver.admit(first.tokens[: first.num_prompt], row=first.row)
    driver.step([again], chunk=10)
    assert decoded(driver, again) == expected


def test_table_entries_land_where_the_delta_says(tiny: ModelBuilder) -> None:
    driver, _ = prefilled(tiny, "qwen2")
    arena, shape = driver.runner.arena.model(driver.spec.name), driver.spec.shape
    before = arena.tables.clone()
    delta = TableDelta(
        rows=np.array([3, 1], dtype=np.int32),
        columns=np.array([2, 0], dtype=np.int32),
        blocks=np.arange(100, 100 + 2 * shape.blocks_per_column, dtype=np.int32).reshape(2, -1),
    )
    driver.runner._models[driver.spec.name].write_tables(delta)
    for i, (row, column) in enumerate([(3, 2), (1, 0)]):
        for layer in range(shape.num_layers):
            for head in range(shape.num_kv_heads):
                before[row, layer, head, column] = delta.blocks[
                    i, layer * shape.num_kv_heads + head
                ]
    assert torch.equal(arena.tables, before)
