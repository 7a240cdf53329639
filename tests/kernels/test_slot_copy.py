"""slot_copy against copies byte by byte."""

import numpy as np
import pytest
import torch

from kernels.paged_decode import paged_decode
from kernels.slot_copy import slot_copy, widest_word
from tests.kernels.paged_cases import filled_case, random_query
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


def test_blocks_of_other_sizes():
    small, large = random_blocks(6, 400), random_blocks(3, 1024, seed=1)
    sizes = {"slot_bytes": 8, "destination_tokens": 64, "source_tokens": 24}
    check(slot_copy, large, small, [(20, 60, 30), (100, 0, 5)], **sizes)


def test_no_runs_and_empty_runs_copy_nothing():
    pool, staging = random_blocks(2, 512), random_blocks(4, 32, seed=1)
    before = staging.clone()
    sizes = {"slot_bytes": 16, "destination_tokens": 1, "source_tokens": 16}
    slot_copy(staging, pool, torch.empty(0, 3, dtype=torch.int32), **sizes)
    slot_copy(staging, pool, torch.tensor([[3, 1, 0], [32, 4, 0]]), **sizes)
    assert torch.equal(staging, before)


@pytest.mark.parametrize("right", [False, True])
def test_a_sequence_restored_into_other_blocks_attends_as_before(right):
    """40 tokens in blocks of 32 go to staging and come back one block later, the places cut anew.

    Staging holds them by place, so a sequence that fills from the right lies there reversed.
    """
    case = filled_case([40, 90], 1, 64, rights=[right, not right])
    query = random_query(2, 1, case)
    rows = (torch.tensor([0, 1]), torch.tensor([40, 90]), case.from_right)
    options = {"block_tokens": 32, "scale": 0.3}
    before = paged_decode(query, case.pool, case.table, *rows, **options)
    width = 64 * 4
    staging = torch.zeros(40, 2 * width, dtype=torch.uint8)
    first, second = (int(block) * 32 for block in case.table[0, 0, :2])
    runs = [(second + 24, 0, 8), (first, 8, 32)] if right else [(first, 0, 32), (second, 32, 8)]
    gather = {"slot_bytes": width, "destination_tokens": 1, "source_tokens": 32}
    slot_copy(staging, case.pool, torch.tensor(runs), **gather)
    used = set(case.table[0, 0, :2].tolist()) | set(case.table[1, 0, :3].tolist())
    fresh = sorted(set(range(len(case.pool))) - used)[:2]
    case.pool[case.table[0, 0, :2].long()] = 0xFF
    case.table[0, 0, :2] = torch.tensor(fresh)
    first, second = fresh[0] * 32, fresh[1] * 32
    runs = [(0, second + 24, 8), (8, first, 32)] if right else [(0, first, 32), (32, second, 8)]
    # Cut anew: one long run as two.
    source, target, count = max(runs, key=lambda run: run[2])
    runs.remove((source, target, count))
    runs += [(source, target, 11), (source + 11, target + 11, count - 11)]
    scatter = {"slot_bytes": width, "destination_tokens": 32, "source_tokens": 1}
    slot_copy(case.pool, staging, torch.tensor(runs), **scatter)
    assert torch.equal(paged_decode(query, case.pool, case.table, *rows, **options), before)


def test_random_runs():
    generator = np.random.default_rng(5)
    for seed in range(20):
        pool, staging = random_blocks(6, 400, seed), random_blocks(96, 24, seed + 50)
        cuts = np.sort(generator.choice(np.arange(1, 96), 9, replace=False))
        bounds = [0, *cuts.tolist(), 96]
        rows = generator.permutation(10)
        runs = [(bounds[i], 96 - bounds[i + 1], bounds[i + 1] - bounds[i]) for i in rows]
        sizes = {"slot_bytes": 12, "destination_tokens": 1, "source_tokens": 16}
        check(slot_copy, staging, pool, runs, **sizes)


@pytest.mark.parametrize(
    ("width", "halves", "word"),
    [(256, 4096, torch.int64), (12, 200, torch.int32), (6, 102, torch.int16), (7, 70, torch.uint8)],
)
def test_the_widest_word_that_divides_all(width, halves, word):
    pool, staging = random_blocks(2, 2 * halves), random_blocks(3, 2 * width)
    assert widest_word(staging, pool, width) == word
    assert widest_word(pool, staging, width) == word


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": torch.zeros(4, 512)}, "source must be"),
        ({"source": torch.zeros(512, 4, dtype=torch.uint8).t()}, "source must be"),
        ({"destination": torch.zeros(32, dtype=torch.uint8)}, "destination must be"),
        ({"destination": torch.zeros(4, 30, dtype=torch.uint8)}, "destination's blocks of 30"),
        ({"destination": torch.zeros(4, 33, dtype=torch.uint8)}, "destination's blocks of 33"),
        ({"source_tokens": 17}, "source's blocks of 512"),
        ({"source_tokens": 0}, "source's blocks of 512"),
        ({"slot_bytes": 0}, "slot_bytes"),
        ({"runs": torch.zeros(2, 3)}, "runs"),
        ({"runs": torch.zeros(2, 4, dtype=torch.int32)}, "runs"),
        ({"runs": torch.tensor([[60, 0, 5]])}, "leaves the source"),
        ({"runs": torch.tensor([[-1, 0, 1]])}, "leaves the source"),
        ({"runs": torch.tensor([[0, 3, 2]])}, "leaves the destination"),
        ({"runs": torch.tensor([[0, 0, -1]])}, "leaves the source"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {
        "destination": torch.zeros(4, 32, dtype=torch.uint8),
        "source": torch.zeros(4, 512, dtype=torch.uint8),
        "runs": torch.tensor([[0, 0, 4]]),
        "slot_bytes": 16,
        "destination_tokens": 1,
        "source_tokens": 16,
    }
    slot_copy(**arguments)
    with pytest.raises(ValueError, match=message):
        slot_copy(**(arguments | change))
