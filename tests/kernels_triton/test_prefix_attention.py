"""The Triton prefix_attention, interpreted, against dense float64 attention and paged_decode."""

from functools import partial
from itertools import accumulate, pairwise

import pytest
import torch

from kernels.triton_ops.paged_decode import paged_decode
from kernels.triton_ops.prefix_attention import prefix_attention
from kernels.triton_ops.prefix_tiling import PrefixShape, PrefixTiling, choose_tiling
from tests.kernels.paged_cases import random_query
from tests.kernels.prefix_cases import Group, check, decodes, grouped_case

SPLIT = PrefixTiling(16, 16, 16, 4, 2, 4)
"""Small tiles; spans of at least 256 keys, so only longer parts are split."""
TWO_SIZES = PrefixTiling(32, 16, 32, 2, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_behind_prefixes(head_dim, dtype):
    block_bytes = 2 * 128 * 8 * dtype.itemsize if head_dim < 256 else None
    options = {"dtype": dtype, "block_bytes": block_bytes}
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


def test_soft_cap():
    grouped = grouped_case([decodes(2, 9, 65), decodes(0, 5)], 1, 64)
    check(prefix_attention, grouped, heads=2, soft_cap=1.5)


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


def test_a_row_may_end_with_its_prefix():
    grouped = grouped_case([decodes(2, 0, 5, 0), Group(1, [(0, 1), (2, 3)])], 1, 64)
    check(prefix_attention, grouped, heads=2)


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


def test_the_prefix_is_read_through_the_first_row_alone():
    grouped = grouped_case([decodes(2, 5, 6, 7)], 1, 64)
    for slot in grouped.slots[1:].tolist():
        grouped.case.table[slot, :, :2] = 2**30
    check(prefix_attention, grouped, heads=2)


@pytest.mark.parametrize("position", [0, 63, 64, 70])
def test_a_corrupted_token_changes_the_rows_that_see_it(position):
    grouped = grouped_case([decodes(2, 9, 6)], 1, 64)
    query = random_query(2, 1, grouped.case)
    before = prefix_attention(query, *grouped.arguments(), **grouped.options())
    grouped.case.place(int(grouped.slots[0]), 0, position, 1).add_(1.0)
    after = prefix_attention(query, *grouped.arguments(), **grouped.options())
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1]) == (position >= 64)


def test_strided_queries_and_no_rows():
    grouped = grouped_case([decodes(1, 5, 4), decodes(0, 3)], 2, 64)
    query = random_query(3, 4, grouped.case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    output = prefix_attention(query, *grouped.arguments(), **grouped.options())
    dense = prefix_attention(query.contiguous(), *grouped.arguments(), **grouped.options())
    assert torch.equal(output, dense)
    pool, table, slots, lengths, from_right, offsets, prefixes = grouped.arguments()
    nothing = (slots[:0], lengths[:0], from_right, offsets[:1], prefixes[:0])
    options = grouped.options()
    assert prefix_attention(query[:0], pool, table, *nothing, **options).shape == (0, 4, 64)


def test_wrong_shapes_are_refused():
    grouped = grouped_case([decodes(1, 5, 4)], 1, 64)
    pool, *rest = grouped.arguments()
    query = random_query(2, 2, grouped.case)
    with pytest.raises(ValueError, match="not one for each"):
        prefix_attention(query[:1], pool, *rest, **grouped.options())
    with pytest.raises(ValueError, match="pool"):
        prefix_attention(query, pool.float(), *rest, **grouped.options())


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
