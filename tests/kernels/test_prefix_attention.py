"""prefix_attention against dense float64 attention, and against paged_decode and paged_prefill."""

from itertools import accumulate

import pytest
import torch

from kernels import prefix_softmax, prefix_tiles
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill
from kernels.prefix_attention import prefix_attention
from tests.kernels.paged_cases import TOLERANCES, random_query
from tests.kernels.prefix_cases import Group, check, decodes, grouped_case


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_odd_lengths_behind_prefixes(head_dim, dtype):
    block = grouped_case([decodes(0, 1)], 1, head_dim, dtype=dtype).case.block_tokens
    tails = [1, block - 1, block, block + 1]
    groups = [decodes(3, *tails), decodes(0, *tails), decodes(1, block)]
    check(prefix_attention, grouped_case(groups, 2, head_dim, dtype=dtype), heads=4)


@pytest.mark.parametrize("group", [1, 4, 7])
def test_grouped_queries(group):
    grouped = grouped_case([decodes(2, 3, 40, 70), decodes(1, 9)], 3, 64)
    check(prefix_attention, grouped, heads=3 * group)


def test_soft_cap():
    grouped = grouped_case([decodes(2, 9, 65), decodes(0, 5)], 2, 64)
    check(prefix_attention, grouped, heads=2, soft_cap=1.5)


@pytest.mark.parametrize("budget", [1, 1 << 17, 1 << 30])
def test_long_prefixes_and_ragged_rows_in_any_cut(monkeypatch, budget):
    monkeypatch.setattr(prefix_softmax, "PART_BYTES", budget)
    groups = [decodes(13, 1, 200, 33, 2), decodes(0, 64, 7, 250), decodes(4, 1)]
    check(prefix_attention, grouped_case(groups, 2, 64), heads=4)


@pytest.mark.parametrize("tile", [1, 16, 64])
def test_prompt_chunks_beside_decodes(monkeypatch, tile):
    monkeypatch.setattr(prefix_tiles, "TILE_TOKENS", tile)
    groups = [
        Group(2, [(33, 33), (7, 1), (50, 20), (17, 17), (70, 1)]),
        Group(0, [(1, 1), (40, 40), (65, 12)]),
        Group(1, [(5, 5)]),
    ]
    check(prefix_attention, grouped_case(groups, 2, 64), heads=4)


def test_a_row_may_end_with_its_prefix():
    grouped = grouped_case([decodes(2, 0, 5, 0), Group(1, [(0, 1), (2, 3)])], 1, 64)
    check(prefix_attention, grouped, heads=2)


def test_empty_groups_and_rows_without_queries_or_context():
    groups = [decodes(0), Group(1, [(4, 0), (9, 2), (3, 0)]), decodes(0), decodes(0, 0), decodes(0)]
    grouped = grouped_case(groups, 2, 64)
    grouped.prefix_lengths[2] = 7 * grouped.case.block_tokens
    output = check(prefix_attention, grouped, heads=2)
    assert (output[-1] == 0).all()


def test_no_rows():
    grouped = grouped_case([decodes(0, 1)], 1, 64)
    none = torch.empty(0, dtype=torch.int32)
    case = grouped.case
    output = prefix_attention(
        torch.empty(0, 2, 64),
        case.pool,
        case.table,
        none,
        none,
        case.from_right,
        torch.zeros(1, dtype=torch.int32),
        none,
        block_tokens=case.block_tokens,
        scale=1.0,
    )
    assert output.shape == (0, 2, 64)


@pytest.mark.parametrize("cut", [[8], [1] * 8, [3, 1, 4], [0, 8], [1, 7]])
@pytest.mark.parametrize("shared", [0, 1, 4])
def test_any_grouping_equals_paged_decode(cut, shared):
    """All rows share 4 blocks; groups may use fewer of them."""
    grouped = grouped_case([decodes(4, 1, 200, 33, 2, 64, 7, 31, 32)], 2, 64)
    grouped.group_offsets = torch.tensor([0, *accumulate(cut)])
    grouped.prefix_lengths = torch.full((len(cut),), shared * grouped.case.block_tokens)
    query = random_query(8, 4, grouped.case)
    output = prefix_attention(query, *grouped.arguments(), **grouped.options())
    options = {"block_tokens": grouped.case.block_tokens, "scale": 0.3}
    expected = paged_decode(query, *grouped.arguments()[:5], **options)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_chunks_equal_paged_prefill():
    grouped = grouped_case([Group(2, [(40, 9), (70, 70), (3, 3)])], 2, 64, dtype=torch.float16)
    query = random_query(82, 4, grouped.case)
    options = grouped.options()
    output = prefix_attention(query, *grouped.arguments(), **options)
    pool, table, slots, lengths, from_right, *_ = grouped.arguments()
    starts = lengths - torch.tensor(grouped.counts)
    rows = (slots, options.pop("query_offsets"), starts, from_right)
    expected = paged_prefill(query, pool, table, *rows, **options)
    limit = TOLERANCES[torch.float16]
    torch.testing.assert_close(output, expected, rtol=limit, atol=limit)


def test_the_prefix_is_read_through_the_first_row_alone():
    grouped = grouped_case([decodes(2, 5, 6, 7)], 2, 64)
    for slot in grouped.slots[1:].tolist():
        grouped.case.table[slot, :, :2] = 2**30
    check(prefix_attention, grouped, heads=4)


@pytest.mark.parametrize("position", [0, 63, 64, 70])
def test_a_corrupted_token_changes_the_rows_that_see_it(position):
    grouped = grouped_case([decodes(2, 9, 6)], 1, 64)
    query = random_query(2, 1, grouped.case)
    before = prefix_attention(query, *grouped.arguments(), **grouped.options())
    grouped.case.place(int(grouped.slots[0]), 0, position, 1).add_(1.0)
    after = prefix_attention(query, *grouped.arguments(), **grouped.options())
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1]) == (position >= 64)


def test_strided_queries():
    grouped = grouped_case([decodes(1, 5, 40), decodes(0, 33)], 2, 64)
    query = random_query(3, 4, grouped.case).transpose(0, 1).contiguous().transpose(0, 1)
    assert not query.is_contiguous()
    output = prefix_attention(query, *grouped.arguments(), **grouped.options())
    dense = prefix_attention(query.contiguous(), *grouped.arguments(), **grouped.options())
    assert torch.equal(output, dense)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 128)}, "query"),
        ({"query": torch.zeros(2, 3, 64)}, "multiple"),
        ({"query": torch.zeros(3, 4, 64)}, "not one for each"),
        ({"query": torch.zeros(2, 4, 64, dtype=torch.int32)}, "query"),
        ({"pool": torch.zeros(4, 16384)}, "pool"),
        ({"table": torch.zeros(2, 2, 3)}, "table"),
        ({"from_right": torch.zeros(2)}, "from_right"),
        ({"slots": torch.zeros((), dtype=torch.int32)}, "slots"),
        ({"lengths": torch.ones(2)}, "lengths"),
        ({"lengths": torch.tensor([33, 97])}, "beyond"),
        ({"lengths": torch.tensor([33, 31])}, "row 1 sees only 31"),
        ({"group_offsets": torch.zeros(3, dtype=torch.int32)}, "group_offsets"),
        ({"group_offsets": torch.tensor([0, 1])}, "rise"),
        ({"group_offsets": torch.tensor([1, 2])}, "rise"),
        ({"prefix_lengths": torch.zeros((), dtype=torch.int32)}, "prefix_lengths"),
        ({"prefix_lengths": torch.tensor([31])}, "multiple of 32"),
        ({"prefix_lengths": torch.tensor([-32])}, "multiple of 32"),
        ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
        ({"query_offsets": torch.tensor([0, 2, 1])}, "rise"),
        ({"query_offsets": torch.tensor([0, 0, 2]), "lengths": torch.tensor([32, 32])}, "only 31"),
        ({"soft_cap": 0.0}, "soft_cap"),
        ({"block_tokens": 33}, "cannot hold"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {
        "query": torch.zeros(2, 4, 64),
        "pool": torch.zeros(4, 16384, dtype=torch.uint8),
        "table": torch.zeros(2, 2, 3, dtype=torch.int32),
        "slots": torch.arange(2),
        "lengths": torch.full((2,), 33, dtype=torch.int32),
        "from_right": torch.zeros(2, dtype=torch.bool),
        "group_offsets": torch.tensor([0, 2]),
        "prefix_lengths": torch.tensor([32]),
        "block_tokens": 32,
        "scale": 1.0,
    }
    prefix_attention(**arguments)
    with pytest.raises(ValueError, match=message):
        prefix_attention(**(arguments | change))
