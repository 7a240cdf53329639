"""Copies between blocks against copies byte by byte: runs that keep their place, and all others."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.engine.memory import copies_cpu
from muxcluster.engine.memory.copies_cpu import copy_between_blocks
from tests.kernels.slot_copy_cases import copied, random_blocks

NUM_BLOCKS = 9


@st.composite
def plain_runs(draw: st.DrawFn, tokens: int) -> np.ndarray:
    """Runs between different blocks of 0 to `tokens` slots, in the same places of both."""
    blocks = draw(st.permutations(range(NUM_BLOCKS)))
    runs = []
    for source, target in zip(blocks[:4], blocks[4:8], strict=True):
        first = draw(st.integers(0, tokens - 1))
        count = draw(st.integers(0, tokens - first))
        runs.append((source * tokens + first, target * tokens + first, count))
    return np.array(runs, dtype=np.int64)


@given(st.data(), st.sampled_from([(8, 3), (16, 16), (24, 20)]), st.booleans())
def test_runs_that_keep_their_place(
    data: st.DataObject, size: tuple[int, int], is_move: bool
) -> None:
    """Spare bytes at the end of each half are left alone."""
    tokens, slot_bytes = size
    runs = data.draw(plain_runs(tokens))
    source = random_blocks(NUM_BLOCKS, 2 * (tokens * slot_bytes + 10))
    target = source if is_move else random_blocks(NUM_BLOCKS, source.shape[1], seed=1)
    sizes = {"slot_bytes": slot_bytes, "destination_tokens": tokens, "source_tokens": tokens}
    expected = copied(target, source.clone(), runs.tolist(), sizes)
    runs.setflags(write=False)
    copy_between_blocks(target, source, runs, slot_bytes, tokens)
    assert torch.equal(target, expected)


OTHERS = [
    [(3, 16 * 4 + 5, 4)],
    [(10, 16 * 4 + 10, 12)],
    [(0, 16, 16), (35, 16 * 5, 1)],
]


@pytest.mark.parametrize("runs", OTHERS, ids=["another place", "two blocks", "one of two"])
def test_all_other_runs(runs: list[tuple[int, int, int]]) -> None:
    source, target = random_blocks(6, 512), random_blocks(6, 512, seed=1)
    sizes = {"slot_bytes": 16, "destination_tokens": 16, "source_tokens": 16}
    expected = copied(target, source, runs, sizes)
    copy_between_blocks(target, source, np.array(runs), 16, 16)
    assert torch.equal(target, expected)


def test_more_than_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_cpu, "_PART_BYTES", 1000)
    source, target = random_blocks(50, 512), random_blocks(50, 512, seed=1)
    order = np.random.default_rng(2).permutation(50)
    runs = np.stack([order * 16 + 3, np.arange(50) * 16 + 3, np.full(50, 13)], axis=1)
    sizes = {"slot_bytes": 16, "destination_tokens": 16, "source_tokens": 16}
    expected = copied(target, source, runs.tolist(), sizes)
    copy_between_blocks(target, source, runs, 16, 16)
    assert torch.equal(target, expected)


@pytest.mark.parametrize("run", [(16 * 3, 0, 1), (0, 16 * 2, 1), (-16, 0, 16), (0, 0, -1)])
def test_runs_out_of_range_are_refused_whole(run: tuple[int, int, int]) -> None:
    source, target = random_blocks(3, 512), random_blocks(2, 512, seed=1)
    before = target.clone()
    with pytest.raises(ValueError, match="leaves the"):
        copy_between_blocks(target, source, np.array([(0, 0, 16), run]), 16, 16)
    assert torch.equal(target, before)
