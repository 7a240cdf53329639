"""The Triton slot_copy, interpreted, against copies byte by byte."""

import numpy as np
import pytest
import torch

from kernels.triton_ops.slot_copy import slot_copy
from tests.kernels.slot_copy_cases import check, random_blocks

RUNS = [(3, 0, 1), (37, 1, 5), (95, 6, 1), (48, 7, 8), (0, 15, 2)]
"""Slots of six blocks of 16, and rows of staging."""


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_gather_then_scatter(head_dim, itemsize):
    width = head_dim * itemsize
    tokens = 4096 * itemsize // (2 * width) // 8 * 8
    pool, staging = random_blocks(6, 4096 * itemsize), random_blocks(40, 2 * width, seed=1)
    runs = [(1, 4, 3), (tokens, 7, tokens), (5 * tokens + 2, 0, 1)]
    sizes = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": tokens}
    check(slot_copy, staging, pool, runs, **sizes)
    back = [(4, 2 * tokens, 3), (7, 3 * tokens + 1, tokens - 1)]
    sizes = {"slot_bytes": width, "destination_tokens": tokens, "source_tokens": 1}
    check(slot_copy, pool, staging, back, **sizes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_moves_between_blocks_of_one_pool(dtype):
    pool = random_blocks(6, 512)
    runs = [(0, 16, 16), (35, 60, 3), (85, 32, 1)]
    sizes = {"slot_bytes": 16, "destination_tokens": 16, "source_tokens": 16}
    check(slot_copy, pool, pool, runs, dtype=dtype, **sizes)


@pytest.mark.parametrize("width", [1, 3, 6, 12, 24])
def test_slots_of_any_width(width):
    pool, staging = random_blocks(6, 32 * width + 2), random_blocks(20, 2 * width, seed=1)
    sizes = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": 16}
    check(slot_copy, staging, pool, RUNS, **sizes)


def test_runs_longer_than_a_step_and_across_blocks():
    small, large = random_blocks(6, 800), random_blocks(3, 1024, seed=1)
    sizes = {"slot_bytes": 8, "destination_tokens": 32, "source_tokens": 48}
    check(slot_copy, large, small, [(20, 7, 70), (100, 0, 5)], **sizes)


def test_no_runs_and_empty_runs_copy_nothing():
    pool, staging = random_blocks(2, 512), random_blocks(4, 32, seed=1)
    before = staging.clone()
    sizes = {"slot_bytes": 16, "destination_tokens": 1, "source_tokens": 16}
    slot_copy(staging, pool, torch.empty(0, 3, dtype=torch.int32), **sizes)
    slot_copy(staging, pool, torch.tensor([[3, 1, 0], [32, 4, 0]]), **sizes)
    assert torch.equal(staging, before)


def test_random_runs():
    generator = np.random.default_rng(5)
    pool, staging = random_blocks(6, 400), random_blocks(96, 24, seed=1)
    cuts = np.sort(generator.choice(np.arange(1, 96), 9, replace=False))
    bounds = [0, *cuts.tolist(), 96]
    rows = generator.permutation(10)
    runs = [(bounds[i], 96 - bounds[i + 1], bounds[i + 1] - bounds[i]) for i in rows]
    sizes = {"slot_bytes": 12, "destination_tokens": 1, "source_tokens": 16}
    check(slot_copy, staging, pool, runs, **sizes)


def test_wrong_shapes_are_refused():
    pool, staging = random_blocks(2, 512), random_blocks(4, 32)
    sizes = {"slot_bytes": 16, "destination_tokens": 1, "source_tokens": 16}
    runs = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ValueError, match="source"):
        slot_copy(staging, pool.float(), runs, **sizes)
    with pytest.raises(ValueError, match="side by side"):
        slot_copy(staging, pool, torch.zeros(3, 2, dtype=torch.int32).t(), **sizes)
