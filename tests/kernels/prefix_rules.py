"""What every prefix_attention must do, against dense float64 attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.paged_cases import random_query, some_sinks
from tests.kernels.prefix_cases import Group, check, decodes, grouped_case


class PrefixAttentionRules:
    """`prefix_attention` is the function under test."""

    prefix_attention: Callable[..., Tensor]

    @pytest.mark.parametrize("block", [16, 32, 64])
    @pytest.mark.parametrize("head_dim", [64, 80, 128])
    def test_odd_lengths_in_blocks_of_any_size(self, head_dim, block):
        options = {"dtype": torch.float16, "block": block}
        tokens = grouped_case([decodes(0, 1)], 1, head_dim, **options).case.block_tokens
        groups = [decodes(2, 1, tokens, tokens + 1), decodes(0, tokens - 1), decodes(1, 3)]
        check(self.prefix_attention, grouped_case(groups, 1, head_dim, **options), heads=2)

    @pytest.mark.parametrize("block", [16, 32, 64])
    def test_prompt_chunks_in_blocks_of_any_size(self, block):
        options = {"dtype": torch.float16, "block": block}
        groups = [Group(1, [(33, 33), (70, 20), (64, 1)]), Group(0, [(40, 40), (65, 2)])]
        check(self.prefix_attention, grouped_case(groups, 1, 128, **options), heads=2)

    def test_soft_cap(self):
        grouped = grouped_case([decodes(2, 9, 65), decodes(0, 5)], 2, 64)
        check(self.prefix_attention, grouped, heads=2, soft_cap=1.5)

    def test_sinks_count_once_however_a_row_is_cut(self):
        groups = [decodes(2, 9, 65), decodes(0, 5), Group(1, [(33, 33), (7, 1)])]
        grouped = grouped_case(groups, 2, 64)
        check(self.prefix_attention, grouped, heads=4, sinks=some_sinks(4, grouped.case))

    def test_a_row_may_end_with_its_prefix(self):
        grouped = grouped_case([decodes(2, 0, 5, 0), Group(1, [(0, 1), (2, 3)])], 1, 64)
        check(self.prefix_attention, grouped, heads=2)

    def test_no_rows(self):
        grouped = grouped_case([decodes(0, 1)], 1, 64)
        none = torch.empty(0, dtype=torch.int32)
        case = grouped.case
        output = self.prefix_attention(
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

    def test_the_prefix_is_read_through_the_first_row_alone(self):
        grouped = grouped_case([decodes(2, 5, 6, 7)], 2, 64)
        for table_row in grouped.table_rows[1:].tolist():
            grouped.case.table[table_row, :, :2] = 2**30
        check(self.prefix_attention, grouped, heads=4)

    @pytest.mark.parametrize("position", [0, 63, 64, 70])
    def test_a_corrupted_token_changes_the_rows_that_see_it(self, position):
        grouped = grouped_case([decodes(2, 9, 6)], 1, 64, block=16)
        query = random_query(2, 1, grouped.case)
        before = self.prefix_attention(query, *grouped.arguments(), **grouped.options())
        grouped.case.place(int(grouped.table_rows[0]), 0, position, 1).add_(1.0)
        after = self.prefix_attention(query, *grouped.arguments(), **grouped.options())
        assert not torch.equal(after[0], before[0])
        assert torch.equal(after[1], before[1]) == (position >= 64)

    def test_strided_queries(self):
        grouped = grouped_case([decodes(1, 5, 40), decodes(0, 33)], 2, 64)
        query = random_query(3, 4, grouped.case).transpose(0, 1).contiguous().transpose(0, 1)
        assert not query.is_contiguous()
        output = self.prefix_attention(query, *grouped.arguments(), **grouped.options())
        dense = self.prefix_attention(query.contiguous(), *grouped.arguments(), **grouped.options())
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
            ({"table_rows": torch.zeros((), dtype=torch.int32)}, "table_rows"),
            ({"lengths": torch.ones(2)}, "lengths"),
            ({"group_offsets": torch.zeros(3, dtype=torch.int32)}, "group_offsets"),
            ({"prefix_lengths": torch.zeros((), dtype=torch.int32)}, "prefix_lengths"),
            ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
            ({"soft_cap": 0.0}, "soft_cap"),
            ({"sinks": torch.zeros(2)}, "sinks"),
            ({"block_tokens": 33}, "cannot hold"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        self.check_refused(change, message)

    def check_refused(self, change, message):
        arguments = {
            "query": torch.zeros(2, 4, 64),
            "pool": torch.zeros(4, 16384, dtype=torch.uint8),
            "table": torch.zeros(2, 2, 3, dtype=torch.int32),
            "table_rows": torch.arange(2),
            "lengths": torch.full((2,), 33, dtype=torch.int32),
            "from_right": torch.zeros(2, dtype=torch.bool),
            "group_offsets": torch.tensor([0, 2]),
            "prefix_lengths": torch.tensor([32]),
            "block_tokens": 32,
            "scale": 1.0,
        }
        self.prefix_attention(**arguments)
        with pytest.raises(ValueError, match=message):
            self.prefix_attention(**(arguments | change))
