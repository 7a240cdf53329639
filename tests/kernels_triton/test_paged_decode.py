"""The Triton kernel of paged_decode, interpreted, keeps the rules, however a row is split."""

from functools import partial

import pytest
import torch

from muxcluster.kernels.triton_ops.paged_decode import paged_decode
from muxcluster.kernels.triton_ops.parts import splits as splits_module
from tests.kernels.paged_cases import filled_case, random_query
from tests.kernels.paged_decode_rules import PagedDecodeRules, check

MANY = {"num_splits": 3, "split_tokens": 16, "tile_tokens": 16}
split = partial(paged_decode, **MANY)


class TestPagedDecode(PagedDecodeRules):
    ways = (paged_decode, split)


@pytest.mark.parametrize("window", [None, 1, 16, 17, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("choices", [{"num_splits": 1, "tile_tokens": 16}, MANY])
def test_window_and_soft_cap(window, soft_cap, choices):
    case = filled_case([1, 33, 70], 1, 64, rights=[False, True, False])
    way = partial(paged_decode, **choices)
    check(way, case, heads=2, sliding_window=window, soft_cap=soft_cap)


@pytest.mark.parametrize("block", [24, 96, 128])
@pytest.mark.parametrize("window", [None, 1, 45, 100])
def test_blocks_that_are_no_tile(window, block):
    """Tiles span blocks of 24, and are parts of blocks of 96 and 128."""
    lengths = [1, block - 1, block, block + 1, 3 * block + 5]
    rights = [True, False, True, False, True]
    case = filled_case(lengths, 1, 128, dtype=torch.float16, rights=rights, block=block)
    check(paged_decode, case, heads=2, sliding_window=window)
    check(partial(paged_decode, num_splits=3, split_tokens=64), case, 2, sliding_window=window)


@pytest.mark.parametrize("window", [None, 1, 63, 64, 100, 150])
def test_splits_of_tiles_in_one_block(window):
    lengths = [1, 63, 64, 65, 400]
    rights = [True, False, True, False, True]
    case = filled_case(lengths, 1, 128, dtype=torch.float16, rights=rights, block=64)
    way = partial(paged_decode, num_splits=3, split_tokens=64)
    check(way, case, heads=2, sliding_window=window)


@pytest.mark.parametrize("num_splits", [2, 5, 17, 40])
@pytest.mark.parametrize("window", [None, 50])
def test_any_number_of_splits_of_a_ragged_batch(num_splits, window):
    case = filled_case([200, 1, 16, 47, 0], 1, 64, rights=[False, True] * 2 + [True])
    way = partial(split, num_splits=num_splits)
    check(way, case, heads=3, sliding_window=window)


def test_splits_that_are_merged_later_may_outweigh_the_first():
    case = filled_case([300], 1, 64)
    case.keys[0][280:] *= 8
    for position in range(280, 300):
        case.place(0, 0, position, 0).mul_(8)
    check(partial(split, num_splits=40), case, heads=2)


def test_large_scores_do_not_overflow():
    case = filled_case([40], 1, 64)
    case.keys[0] *= 64
    for position in range(40):
        case.place(0, 0, position, 0).mul_(64)
    check(paged_decode, case, heads=1)
    check(paged_decode, case, heads=1, soft_cap=30.0)
    check(split, case, heads=1)


@pytest.mark.parametrize("choices", [{"num_splits": 1}, MANY])
def test_a_row_sees_no_more_than_its_table_holds(choices):
    case = filled_case([64], 1, 64)
    table = case.table[:, :, :2]
    query = random_query(1, 1, case)
    outputs = [
        paged_decode(
            query,
            case.pool,
            table,
            torch.tensor([0]),
            torch.tensor([length]),
            case.from_right,
            block_tokens=32,
            scale=0.3,
            **choices,
        )
        for length in (64, 65, 10**6)
    ]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    ("rows", "kv_heads", "max_tokens", "splits"),
    [
        (1, 8, 32768, 128),
        (1, 8, 4096, 16),
        (1, 1, 100, 1),
        (16, 8, 32768, 9),
        (64, 8, 32768, 3),
        (256, 8, 32768, 1),
        (0, 8, 32768, 1),
    ],
)
def test_splits_fill_the_device_and_no_more(monkeypatch, rows, kv_heads, max_tokens, splits):
    monkeypatch.setattr(splits_module, "multiprocessors", lambda device: 132)
    chosen = splits_module.choose_splits(rows, kv_heads, max_tokens, torch.device("cuda"))
    assert chosen == splits
