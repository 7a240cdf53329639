"""What every paged_decode must do, against dense float64 attention over the same keys."""

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
    lengths=None,
    table_rows=None,
    **options,
) -> None:
    """`function` must give dense attention, row by row; all sequences at their ends by default."""
    table_rows = table_rows if table_rows is not None else list(range(len(case.keys)))
    lengths = lengths or [len(case.keys[table_row]) for table_row in table_rows]
    query = random_query(len(table_rows), heads, case)
    output = function(
        query,
        case.pool,
        case.table,
        torch.tensor(table_rows, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        case.from_right,
        block_tokens=case.block_tokens,
        scale=0.3,
        **options,
    )
    assert output.dtype == case.dtype
    limit = TOLERANCES[case.dtype]
    for row, (table_row, length) in enumerate(zip(table_rows, lengths, strict=True)):
        expected = torch.zeros(heads, case.head_dim, dtype=torch.float64)
        if length:
            expected = case.attention(
                query[row : row + 1], table_row, length, scale=0.3, **options
            )[0]
        torch.testing.assert_close(output[row].double(), expected, rtol=limit, atol=limit)


class PagedDecodeRules:
    """`ways`: the public function first, then others of the same arguments it may choose."""

    ways: tuple[Callable[..., Tensor], ...]

    def check(self, case: PagedCase, heads: int, **options) -> None:
        for way in self.ways:
            check(way, case, heads, **options)

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
        self.check(case, heads=4, **options)

    @pytest.mark.parametrize("block", [16, 32, 64])
    @pytest.mark.parametrize("window", [1, 31, 64, 100])
    def test_windows_in_blocks_of_any_size(self, window, block):
        self.check_odd_lengths(128, torch.float16, block, sliding_window=window, soft_cap=2.0)

    @pytest.mark.parametrize(("head_dim", "block"), [(80, 32), *slow(*OTHER_SIZES)])
    def test_full_blocks_may_lie_as_the_other_side_fills_them(self, head_dim, block):
        tokens = filled_case([1], 1, head_dim, block=block).block_tokens
        lengths = [2 * tokens, 2 * tokens + 1, 4 * tokens - 1] * 2
        case = filled_case(lengths, 2, head_dim, rights=[False] * 3 + [True] * 3, block=block)
        for table_row, num_columns in enumerate((2, 1, 3) * 2):
            case.turn(table_row, num_columns)
        self.check(case, heads=4)
        self.check(case, heads=4, soft_cap=2.0)

    @pytest.mark.parametrize(
        "options", [{}, {"sliding_window": 33}, {"sliding_window": 5, "soft_cap": 2.0}]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_sinks(self, dtype, options):
        case = filled_case([1, 31, 33, 100], 2, 64, dtype=dtype, rights=[False, True] * 2)
        self.check(case, heads=6, sinks=some_sinks(6, case), **options)

    def test_sinks_of_long_rows_and_of_one_without_context(self):
        case = filled_case([300, 5, 120], 1, 64, rights=[False, True, False])
        rows = {"table_rows": [0, 1, 0, 2], "lengths": [300, 0, 41, 120]}
        self.check(case, heads=3, sinks=some_sinks(3, case).half(), **rows)

    @pytest.mark.parametrize(("block", "dtype"), [(16, torch.float32), (32, torch.float16)])
    @pytest.mark.parametrize("window", [5, 40])
    def test_blocks_behind_the_window_are_not_read(self, window, block, dtype):
        lengths, rights = [150, 97, 64, 190], [False, False, True, True]
        case = filled_case(lengths, 2, 128, dtype=dtype, rights=rights, block=block)
        for table_row, length in enumerate(lengths):
            case.give_back(table_row, max(0, length - window) // case.block_tokens)
        self.check(case, heads=4, sliding_window=window)

    @pytest.mark.parametrize("group", [1, 3, 4, 8, 17, 35])
    def test_grouped_queries(self, group):
        self.check(filled_case([3, 40, 70], 3, 64, rights=[True, False, True]), heads=3 * group)

    def test_rows_are_any_table_rows_at_any_length(self):
        case = filled_case([70, 5, 90], 2, 64, rights=[False, False, True])
        self.check(case, heads=4, table_rows=[2, 0, 2, 1], lengths=[90, 33, 64, 0])

    def test_strided_queries_and_long_integers(self):
        case = filled_case([5, 40, 33], 2, 64)
        query = random_query(3, 4, case).transpose(0, 1).contiguous().transpose(0, 1)
        assert not query.is_contiguous()
        rows = (torch.arange(3), torch.tensor([5, 40, 33]))
        options = {"block_tokens": case.block_tokens, "scale": 0.3}
        for way in self.ways:
            output = way(query, case.pool, case.table, *rows, case.from_right, **options)
            for row, length in enumerate([5, 40, 33]):
                expected = case.attention(query[row : row + 1], row, length, scale=0.3)[0]
                torch.testing.assert_close(output[row].double(), expected, rtol=1e-5, atol=1e-5)

    def test_no_rows(self):
        case = filled_case([4], 1, 64)
        none = torch.empty(0, dtype=torch.int32)
        query = random_query(0, 2, case)
        options = {"block_tokens": case.block_tokens, "scale": 1.0}
        for way in self.ways:
            output = way(query, case.pool, case.table, none, none, case.from_right, **options)
            assert output.shape == (0, 2, 64)

    @pytest.mark.parametrize("half", [0, 1])
    def test_a_corrupted_token_changes_the_output(self, half):
        case = filled_case([40], 1, 64)
        query = random_query(1, 1, case)
        arguments = (case.table, torch.tensor([0]), torch.tensor([40]), case.from_right)
        options = {"block_tokens": case.block_tokens, "scale": 0.3}
        before = [way(query, case.pool, *arguments, **options) for way in self.ways]
        case.place(0, 0, 37, half).add_(1.0)
        for way, former in zip(self.ways, before, strict=True):
            assert not torch.equal(way(query, case.pool, *arguments, **options), former)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": torch.zeros(2, 128)}, "query"),
            ({"query": torch.zeros(2, 3, 64)}, "multiple"),
            ({"query": torch.zeros(2, 4, 64, dtype=torch.int32)}, "query"),
            ({"pool": torch.zeros(4, 16384)}, "pool"),
            ({"pool": torch.zeros(4, 16382, dtype=torch.uint8)}, "cannot hold"),
            ({"table": torch.zeros(2, 2, 3)}, "table"),
            ({"table": torch.zeros(2, 3, dtype=torch.int32)}, "table"),
            ({"from_right": torch.zeros(2)}, "from_right"),
            ({"table_rows": torch.zeros(3, dtype=torch.int32)}, "table_rows"),
            ({"lengths": torch.ones(2)}, "lengths"),
            ({"sliding_window": 0}, "sliding_window"),
            ({"soft_cap": 0.0}, "soft_cap"),
            ({"sinks": torch.zeros(3)}, "sinks"),
            ({"sinks": torch.zeros(4, dtype=torch.int32)}, "sinks"),
            ({"sinks": torch.zeros(8)[::2]}, "sinks"),
            ({"block_tokens": 33}, "cannot hold"),
        ],
    )
    def test_wrong_arguments_are_named(self, change, message):
        arguments = {
            "query": torch.zeros(2, 4, 64),
            "pool": torch.zeros(4, 16384, dtype=torch.uint8),
            "table": torch.zeros(2, 2, 3, dtype=torch.int32),
            "table_rows": torch.arange(2),
            "lengths": torch.ones(2, dtype=torch.int32),
            "from_right": torch.zeros(2, dtype=torch.bool),
            "block_tokens": 32,
            "scale": 1.0,
        }
        self.ways[0](**arguments)
        with pytest.raises(ValueError, match=message):
            self.ways[0](**(arguments | change))
