"""The Triton kernel of paged_prefill, interpreted, keeps the rules, at every edge of a tile."""

from functools import partial

import pytest
import torch

from muxcluster.kernels.triton_ops.paged_prefill import paged_prefill
from muxcluster.kernels.triton_ops.parts.prefill_tiling import Tiling, choose_tiling
from muxcluster.scheduling.packing.rows import TILE_TOKENS
from tests.kernels.paged_cases import filled_case, random_query
from tests.kernels.paged_prefill_rules import PagedPrefillRules, check

SMALL = Tiling(members=16, keys=16, num_warps=4, tiles_in_flight=1)
small = partial(paged_prefill, tiling=SMALL)


class TestPagedPrefill(PagedPrefillRules):
    paged_prefill = staticmethod(paged_prefill)


@pytest.mark.parametrize("group", [1, 3, 7, 8, 17])
def test_groups_share_a_tile(group):
    case = filled_case([3, 40, 70], 2, 64, dtype=torch.float16, rights=[True, False, True])
    check(paged_prefill, case, heads=2 * group, starts=[0, 8, 0])


@pytest.mark.parametrize("group", [3, 8])
def test_a_tile_ends_inside_a_group(group):
    case = filled_case([3, 20], 2, 64, rights=[True, False])
    check(small, case, heads=2 * group, starts=[0, 8])


@pytest.mark.parametrize("window", [None, 1, 7, 15, 16, 17, 33, 1000])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_window_and_soft_cap(window, soft_cap):
    case = filled_case([1, 33, 90], 1, 64, rights=[False, True, False])
    options = {"sliding_window": window, "soft_cap": soft_cap}
    check(small, case, heads=1, starts=[0, 20, 0], **options)


@pytest.mark.parametrize("count", [15, 16, 17, 33])
@pytest.mark.parametrize("before", [0, 14, 15, 16])
def test_every_edge_of_a_tile(before, count):
    case = filled_case([before + count, count], 1, 64, rights=[True, False])
    check(small, case, heads=1, starts=[before, 0])
    check(small, case, heads=1, starts=[before, 0], sliding_window=16)


def test_more_rows_than_are_looked_at_together():
    case = filled_case([1, 9, 1], 1, 64, rights=[False, True, False])
    check(small, case, heads=1, table_rows=[0, 1, 2] * 45, starts=[0, 8, 1] * 45)


def test_large_scores_do_not_overflow():
    case = filled_case([40], 1, 64)
    case.keys[0] *= 64
    for position in range(40):
        case.place(0, 0, position, 0).mul_(64)
    check(small, case, heads=1)
    check(small, case, heads=1, soft_cap=30.0)


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_any_scale(scale):
    case = filled_case([40], 1, 64)
    check(small, case, heads=1, scale=scale)
    check(small, case, heads=1, scale=scale, soft_cap=2.0)


def test_a_row_sees_no_more_than_its_table_holds():
    case = filled_case([64], 1, 64)
    query = random_query(8, 1, case)
    rows = (torch.tensor([0]), torch.tensor([0, 8]))
    options = {"block_tokens": 32, "scale": 0.3, "tiling": SMALL}
    output = paged_prefill(
        query,
        case.pool,
        case.table[:, :, :2],
        *rows,
        torch.tensor([60]),
        case.from_right,
        **options,
    )
    expected = case.attention(query[:4], 0, 64, scale=0.3)
    # Queries beyond the table see what the last one in it sees.
    for row in range(4, 8):
        beyond = case.attention(query[row : row + 1], 0, 64, scale=0.3)
        expected = torch.cat((expected, beyond))
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("members", "group", "block"),
    [(1, 1, 16), (20, 4, 32), (128, 8, 128), (8192, 1, 128), (3, 17, 32), (99, 200, 256)],
)
def test_tiles_are_as_large_as_the_rows_need(members, group, block):
    assert choose_tiling(members, group, 128, torch.bfloat16, 9).members == block


def test_the_scheduler_fills_the_largest_tiles():
    largest = [choose_tiling(10_000, 1, 128, torch.float16, major).members for major in (8, 9)]
    assert max(largest) == TILE_TOKENS
