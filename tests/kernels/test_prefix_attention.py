"""The plain-torch prefix_attention keeps the rules and equals paged_decode and paged_prefill."""

from itertools import accumulate

import pytest
import torch

from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.cpu import prefix_softmax, prefix_tiles
from tests.kernels.paged_cases import TOLERANCES, random_query
from tests.kernels.prefix_cases import Group, check, decodes, grouped_case
from tests.kernels.prefix_rules import PrefixAttentionRules


class TestPrefixAttention(PrefixAttentionRules):
    prefix_attention = staticmethod(prefix_attention)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"lengths": torch.tensor([33, 97])}, "beyond"),
            ({"lengths": torch.tensor([33, 31])}, "row 1 sees only 31"),
            ({"group_offsets": torch.tensor([0, 1])}, "rise"),
            ({"group_offsets": torch.tensor([1, 2])}, "rise"),
            ({"prefix_lengths": torch.tensor([31])}, "multiple of 32"),
            ({"prefix_lengths": torch.tensor([-32])}, "multiple of 32"),
            ({"query_offsets": torch.tensor([0, 2, 1])}, "rise"),
            (
                {"query_offsets": torch.tensor([0, 0, 2]), "lengths": torch.tensor([32, 32])},
                "only 31",
            ),
        ],
    )
    def test_wrong_values_are_named(self, change, message):
        self.check_refused(change, message)


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


def test_empty_groups_and_rows_without_queries_or_context():
    groups = [decodes(0), Group(1, [(4, 0), (9, 2), (3, 0)]), decodes(0), decodes(0, 0), decodes(0)]
    grouped = grouped_case(groups, 2, 64)
    grouped.prefix_lengths[2] = 7 * grouped.case.block_tokens
    output = check(prefix_attention, grouped, heads=2)
    assert (output[-1] == 0).all()


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
    pool, table, table_rows, lengths, from_right, *_ = grouped.arguments()
    starts = lengths - torch.tensor(grouped.counts)
    rows = (table_rows, options.pop("query_offsets"), starts, from_right)
    expected = paged_prefill(query, pool, table, *rows, **options)
    limit = TOLERANCES[torch.float16]
    torch.testing.assert_close(output, expected, rtol=limit, atol=limit)
