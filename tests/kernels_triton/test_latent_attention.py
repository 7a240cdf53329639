"""The Triton kernel of latent_attention, interpreted, keeps the rules, split and in any tiles."""

from functools import partial

import pytest
import torch

from muxcluster.kernels.triton_ops.latent_attention import choose_latent_tiling, latent_attention
from muxcluster.kernels.triton_ops.parts.prefill_tiling import Tiling
from tests.kernels.latent_rules import SIZES, LatentAttentionRules, check, latent_case

SMALL = Tiling(members=16, keys=16, num_warps=4, tiles_in_flight=1)


class TestLatentAttention(LatentAttentionRules):
    latent_attention = staticmethod(latent_attention)


@pytest.mark.parametrize("num_splits", [2, 7])
@pytest.mark.parametrize("size", SIZES[:2])
def test_a_context_in_splits(size, num_splits):
    case = latent_case([1, 150, 40, 64], size, rights=[True, False, True, False], block=4)
    starts = [0, 149, 39, 63]
    function = partial(latent_attention, num_splits=num_splits, split_tokens=16, tiling=SMALL)
    check(function, case, size, heads=20, starts=starts, is_decode=True)


@pytest.mark.parametrize("keys", [16, 32])
@pytest.mark.parametrize("block", [1, 4])
def test_tiles_in_one_block_and_in_several(block, keys):
    size = SIZES[2]
    case = latent_case([70, 33], size, dtype=torch.float16, rights=[True, False], block=block)
    tiling = Tiling(members=16, keys=keys, num_warps=4, tiles_in_flight=1)
    check(partial(latent_attention, tiling=tiling), case, size, heads=3, starts=[0, 31])


@pytest.mark.parametrize("count", [15, 16, 17, 33])
def test_every_edge_of_a_tile(count):
    size = SIZES[0]
    case = latent_case([14 + count, count, 1], size, rights=[True, False, False])
    function = partial(latent_attention, tiling=SMALL)
    check(function, case, size, heads=1, starts=[14, 0, 0])
    check(function, case, size, heads=5, starts=[14, 0, 0])


def test_more_rows_than_are_looked_at_together():
    size = SIZES[0]
    case = latent_case([1, 9, 1], size, rights=[False, True, False])
    rows, starts = [0, 1, 2] * 45, [0, 8, 1] * 45
    function = partial(latent_attention, tiling=SMALL)
    check(function, case, size, heads=2, table_rows=rows, starts=starts)


def test_tiles_are_as_large_as_the_rows_need():
    tiling = partial(choose_latent_tiling, dtype=torch.bfloat16)
    assert tiling(3, major=9, is_decode=True).members == 16
    assert tiling(4096, major=9, is_decode=False).members == 64
    assert tiling(4096, major=8, is_decode=False).members == 32
    assert tiling(128, major=10, is_decode=True).members == 32
