"""The Triton prefix_attention, interpreted, keeps the rules and equals paged_decode."""

from functools import partial
from itertools import accumulate, pairwise

import pytest
import torch

from muxcluster.kernels.triton_ops.paged_decode import paged_decode
from muxcluster.kernels.triton_ops.parts.prefix_tiling import (
    PrefixShape,
    PrefixTiling,
    choose_tiling,
)
from muxcluster.kernels.triton_ops.prefix_attention import prefix_attention
from tests.kernels.paged_cases import random_query
from tests.kernels.prefix_cases import Group, check, decodes, grouped_case
from tests.kernels.prefix_rules import PrefixAttentionRules

SPLIT = PrefixTiling(16, 16, 16, 4, 2, 4)
"""Small tiles; spans of at least 256 keys, so only longer parts are split."""
TWO_SIZES = PrefixTiling(32, 16, 32, 2, 4, 4)


class TestPrefixAttention(PrefixAttentionRules):
    prefix_attention = staticmethod(prefix_attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_behind_prefixes(head_dim, dtype):
    options = {"dtype": dtype, "block": 8 if head_dim < 256 else None}
    block = grouped_case([decodes(0, 1)], 1, head_dim, **options).case.block_tokens
    groups = [decodes(2, 1, block, block + 1), decodes(0, block - 1, 1), decodes(1, 3)]
    check(prefix_attention, grouped_case(groups, 1, head_dim, **options), heads=2)


@pytest.mark.parametrize(("group", "tiling"), [(1, None), (4, SPLIT), (7, TWO_SIZES), (7, None)])
def test_grouped_queries_in_any_tiles(group, tiling):
    groups = [decodes(2, 3, 40, 5, 1, 2), decodes(1, 9)]
    grouped = grouped_case(groups, 2, 64)
    check(partial(prefix_attention, tiling=tiling), grouped, heads=2 * group)


@pytest.mark.parametrize("tiling", [SPLIT, TWO_SIZES])
def test_long_prefixes_and_long_rows_are_split(tiling):
    groups = [decodes(20, 1, 300, 33), decodes(0, 530), decodes(8, 0, 257)]
    check(partial(prefix_attention, tiling=tiling), grouped_case(groups, 1, 64), heads=2)


@pytest.mark.parametrize("tiling", [None, SPLIT, TWO_SIZES, PrefixTiling(64, 32, 16, 1, 2, 4)])
def test_prompt_chunks_beside_decodes(tiling):
    groups = [
        Group(2, [(33, 33), (7, 1), (17, 10), (70, 1)]),
        Group(0, [(1, 1), (40, 40)]),
        Group(1, [(5, 5), (290, 3)]),
    ]
    grouped = grouped_case(groups, 1, 64)
    check(partial(prefix_attention, tiling=tiling), grouped, heads=2)


@pytest.mark.parametrize("tiling", [None, SPLIT, TWO_SIZES])
def test_empty_groups_and_rows_without_queries_or_context(tiling):
    groups = [decodes(0), Group(1, [(4, 0), (9, 2), (3, 0)]), decodes(0), decodes(0, 0), decodes(0)]
    grouped = grouped_case(groups, 1, 64)
    grouped.prefix_lengths[2] = grouped.prefix_lengths[4] = 7 * grouped.case.block_tokens
    output = check(partial(prefix_attention, tiling=tiling), grouped, heads=2)
    assert (output[-1] == 0).all()


def test_more_groups_and_rows_than_are_searched_at_once():
    groups = [decodes(1, 2, 3), *[decodes(0)] * 130, decodes(1, 1, 5), decodes(0, 4), decodes(0)]
    check(prefix_attention, grouped_case(groups, 1, 64), heads=1)
    groups = [Group(1, [(9, 2), *[(1, 0)] * 131, (5, 3)]), Group(0, [(4, 4)])]
    check(prefix_attention, grouped_case(groups, 1, 64), heads=1)


@pytest.mark.parametrize("cut", [[5], [1] * 5, [3, 0, 2]])
@pytest.mark.parametrize("shared", [0, 3])
def test_any_grouping_equals_paged_decode(cut, shared):
    """All rows share 3 blocks; groups may use fewer of them."""
    grouped = grouped_case([decodes(3, 1, 50, 33, 2, 32)], 2, 64)
    grouped.group_offsets = torch.tensor([0, *accumulate(cut)])
    grouped.prefix_lengths = torch.full((len(cut),), shared * grouped.case.block_tokens)
    query = random_query(5, 4, grouped.case)
    output = prefix_attention(query, *grouped.arguments(), **grouped.options())
    options = {"block_tokens": grouped.case.block_tokens, "scale": 0.3}
    expected = paged_decode(query, *grouped.arguments()[:5], **options)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 31, 256])
@pytest.mark.parametrize("group", [1, 7, 8, 71])
@pytest.mark.parametrize("groups", [1, 5, 40])
def test_tiles_suffice_and_hold_whole_queries(tokens, group, groups):
    shape = PrefixShape(tokens, tokens, groups, 2, group, 128, single=False)
    tiling = choose_tiling(shape, 4096, torch.float16, 500)
    queries = tiling.prefix_queries
    assert queries >= max(16, group) and queries & (queries - 1) == 0
    held = queries // group
    generator = torch.Generator().manual_seed(tokens)
    for _ in range(20):
        inner = torch.randint(0, tokens + 1, (groups - 1,), generator=generator)
        bounds = [0, *sorted(inner.tolist()), tokens]
        firsts = [bound // held + owner for owner, bound in enumerate(bounds[:-1])]
        firsts.append(shape.prefix_tiles(queries))
        for owner, (start, stop) in enumerate(pairwise(bounds)):
            assert firsts[owner] + -(-(stop - start) // held) <= firsts[owner + 1]
