"""What every paged_prefill must do, against dense float64 attention over the same keys."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.amounts import slow
from tests.kernels.paged_cases import (
    OTHER_SIZES,
    TOLERANCES,
    PagedCase,
    filled_case,
    random_query,
    some_sinks,
)


def check(
    function: Callable[..., Tensor],
    case: PagedCase,
    heads: int,
    *,
    starts=None,
    table_rows=None,
    scale=0.3,
    **options,
) -> None:
    """`function` must give dense attention: of each row's sequence, from starts[row] to its end."""
    table_rows = table_rows or list(range(len(case.keys)))
    starts = starts or [0] * len(table_rows)
    ends = [len(case.keys[table_row]) for table_row in table_rows]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    offsets = [0, *itertools.accumulate(counts)]
    query = random_query(offsets[-1], heads, case)
    output = function(
        query,
        case.pool,
        case.table,
        torch.tensor(table_rows, dtype=torch.int32),
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        case.from_right,
        block_tokens=case.block_tokens,
        scale=scale,
        **options,
    )
    assert output.dtype == case.dtype
    limit = TOLERANCES[case.dtype]
    for row, table_row in enumerate(table_rows):
        part = slice(offsets[row], offsets[row + 1])
        if counts[row]:
            expected = case.attention(query[part], table_row, ends[row], scale=scale, **options)
            torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)


MORE_WINDOWS = (
    *((1, 32), (1, 64), (31, 16), (31, 32), (64, 16), (64, 32), (64, 64), (100, 16), (100, 64)),
)
"""With the block that they run in."""


class PagedPrefillRules:
    """`paged_prefill` is the function under test."""

    paged_prefill: Callable[..., Tensor]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_odd_lengths_on_both_sides(self, head_dim, dtype):
        self.check_odd_lengths(head_dim, dtype)

    @pytest.mark.parametrize("block", [32, 64])
    @pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
    def test_odd_lengths_of_larger_blocks(self, head_dim, block):
        self.check_odd_lengths(head_dim, torch.float16, block)

    def check_odd_lengths(self, head_dim, dtype, block=None, **options):
        tokens = filled_case([1], 1, head_dim, dtype=dtype, block=block).block_tokens
        lengths = [1, tokens - 1, tokens, tokens + 1] * 2
        rights = [False] * 4 + [True] * 4
        case = filled_case(lengths, 2, head_dim, dtype=dtype, rights=rights, block=block)
        starts = [0, tokens // 3, tokens - 1, tokens, 0, tokens - 2, 1, 5]
        check(self.paged_prefill, case, heads=4, **options)
        check(self.paged_prefill, case, heads=4, starts=starts, **options)

    @pytest.mark.parametrize(
        ("window", "block"), [(1, 16), (31, 64), (100, 32), *slow(*MORE_WINDOWS)]
    )
    def test_windows_in_blocks_of_any_size(self, window, block):
        self.check_odd_lengths(128, torch.float16, block, sliding_window=window, soft_cap=2.0)

    @pytest.mark.parametrize(("head_dim", "block"), [(80, 32), *slow(*OTHER_SIZES)])
    def test_full_blocks_before_a_chunk_may_lie_as_the_other_side_fills_them(self, head_dim, block):
        tokens = filled_case([1], 1, head_dim, block=block).block_tokens
        lengths = [2 * tokens + 9, 3 * tokens + 1, 4 * tokens - 1] * 2
        case = filled_case(lengths, 2, head_dim, rights=[False] * 3 + [True] * 3, block=block)
        for table_row, num_columns in enumerate((2, 1, 3) * 2):
            case.turn(table_row, num_columns)
        starts = [2 * tokens, tokens + 3, 3 * tokens] * 2
        check(self.paged_prefill, case, heads=4, starts=starts)

    @pytest.mark.parametrize(
        "options", [{}, {"sliding_window": 20}, {"sliding_window": 5, "soft_cap": 2.0}]
    )
    def test_sinks(self, options):
        case = filled_case([3, 40, 33, 70], 2, 64, rights=[False, True] * 2)
        options = {**options, "sinks": some_sinks(6, case)}
        check(self.paged_prefill, case, heads=6, **options)
        check(self.paged_prefill, case, heads=6, starts=[1, 30, 32, 35], **options)

    @pytest.mark.parametrize("block", [16, 32])
    @pytest.mark.parametrize("window", [5, 40])
    def test_blocks_behind_the_window_are_not_read(self, window, block):
        starts, lengths = [110, 90, 141, 61], [150, 97, 150, 190]
        rights = [False, False, True, True]
        case = filled_case(lengths, 2, 128, dtype=torch.float16, rights=rights, block=block)
        for table_row, start in enumerate(starts):
            case.give_back(table_row, max(0, start + 1 - window) // case.block_tokens)
        check(self.paged_prefill, case, heads=4, starts=starts, sliding_window=window)

    @pytest.mark.parametrize("group", [1, 4, 8])
    def test_grouped_queries(self, group):
        case = filled_case([3, 20, 40], 2, 64, rights=[True, False, True])
        check(self.paged_prefill, case, heads=2 * group, starts=[0, 8, 0])

    def test_rows_are_any_table_rows_and_may_be_empty(self):
        case = filled_case([40, 7, 33], 2, 64)
        check(
            self.paged_prefill, case, heads=2, table_rows=[1, 2, 1, 0, 1], starts=[7, 1, 7, 35, 7]
        )

    def test_strided_queries_and_long_integers(self):
        case = filled_case([5, 40], 2, 64)
        query = random_query(45, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
        assert not query.is_contiguous()
        rows = (torch.arange(2), torch.tensor([0, 5, 45]), torch.zeros(2, dtype=torch.int64))
        options = {"block_tokens": case.block_tokens, "scale": 0.3}
        output = self.paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
        for row, part in enumerate([slice(0, 5), slice(5, 45)]):
            expected = case.attention(query[part], row, part.stop - part.start, scale=0.3)
            torch.testing.assert_close(output[part].double(), expected, rtol=1e-5, atol=1e-5)

    def test_no_rows(self):
        case = filled_case([4], 1, 64)
        none = torch.empty(0, dtype=torch.int32)
        offsets = torch.zeros(1, dtype=torch.int32)
        query = random_query(0, 2, case)
        options = {"block_tokens": case.block_tokens, "scale": 1.0}
        output = self.paged_prefill(
            query, case.pool, case.table, none, offsets, none, case.from_right, **options
        )
        assert output.shape == (0, 2, 64)

    @pytest.mark.parametrize("half", [0, 1])
    def test_a_corrupted_token_changes_what_comes_after_it(self, half):
        case = filled_case([40], 1, 64)
        query = random_query(40, 1, case)
        rows = (torch.tensor([0]), torch.tensor([0, 40]), torch.tensor([0]))
        options = {"block_tokens": case.block_tokens, "scale": 0.3}
        before = self.paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
        case.place(0, 0, 17, half).add_(1.0)
        after = self.paged_prefill(query, case.pool, case.table, *rows, case.from_right, **options)
        assert torch.equal(before[:17], after[:17])
        assert (before[17:] != after[17:]).any(-1).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": torch.zeros(3, 128)}, "query"),
            ({"query": torch.zeros(3, 3, 64)}, "multiple"),
            ({"pool": torch.zeros(4, 16384)}, "pool"),
            ({"table": torch.zeros(2, 2, 3)}, "table"),
            ({"from_right": torch.zeros(2)}, "from_right"),
            ({"table_rows": torch.zeros((), dtype=torch.int32)}, "table_rows"),
            ({"starts": torch.zeros(3, dtype=torch.int32)}, "starts"),
            ({"query_offsets": torch.zeros(2, dtype=torch.int32)}, "query_offsets"),
            ({"sliding_window": -1}, "sliding_window"),
            ({"soft_cap": -1.0}, "soft_cap"),
            ({"sinks": torch.zeros(4, 1)}, "sinks"),
            ({"block_tokens": 33}, "cannot hold"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        self.check_refused(change, message)

    def check_refused(self, change, message):
        arguments = {
            "query": torch.zeros(3, 4, 64),
            "pool": torch.zeros(4, 16384, dtype=torch.uint8),
            "table": torch.zeros(2, 2, 3, dtype=torch.int32),
            "table_rows": torch.arange(2),
            "query_offsets": torch.tensor([0, 1, 3]),
            "starts": torch.zeros(2, dtype=torch.int32),
            "from_right": torch.zeros(2, dtype=torch.bool),
            "block_tokens": 32,
            "scale": 1.0,
        }
        self.paged_prefill(**arguments)
        with pytest.raises(ValueError, match=message):
            self.paged_prefill(**(arguments | change))
