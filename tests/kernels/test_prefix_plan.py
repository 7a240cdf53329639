"""The plan of a decode step over prefix groups, against dense float64 attention."""

from functools import partial

import pytest
import torch
from torch import Tensor

from muxcluster.kernels.cpu import decode_direct, prefix_plan
from muxcluster.kernels.cpu.prefix_plan import PrefixPlan
from muxcluster.kernels.cpu.sinks import attend_with_sinks
from muxcluster.kernels.layout import half_rows
from tests.kernels.paged_cases import random_query, some_sinks
from tests.kernels.prefix_cases import check, decodes, grouped_case


def planned(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    group_offsets: Tensor,
    prefix_lengths: Tensor,
    *,
    block_tokens: int,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    query_offsets: Tensor | None = None,
) -> Tensor:
    """A `PrefixPlan` with the signature of `prefix_attention`; it is asked for the second layer."""
    assert query_offsets is None
    rows, heads, head_dim = query.shape
    halves = half_rows(pool, kv_dtype or query.dtype, block_tokens, head_dim)
    grouped = query.view(rows, table.shape[1], -1, head_dim)
    tables = torch.stack((torch.zeros_like(table), table), dim=1)
    wide = (each.long() for each in (table_rows, lengths))
    ranges = (group_offsets.long(), prefix_lengths.long())
    plan = PrefixPlan(
        grouped, halves, tables, *wide, from_right, *ranges, block_tokens=block_tokens
    )
    attended = attend_with_sinks(
        plan, grouped, halves, 1, scale=scale, soft_cap=soft_cap, sinks=sinks
    )
    return attended.to(query.dtype).view(query.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_odd_lengths_behind_prefixes(head_dim: int, dtype: torch.dtype) -> None:
    block = grouped_case([decodes(0, 1)], 1, head_dim, dtype=dtype).case.block_tokens
    tails = [1, block - 1, block, block + 1]
    groups = [decodes(3, *tails), decodes(0, *tails), decodes(1, block), decodes(2)]
    check(planned, grouped_case(groups, 2, head_dim, dtype=dtype), heads=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn])
def test_keys_and_values_in_8_bits(kv_dtype: torch.dtype, dtype: torch.dtype) -> None:
    options = {"dtype": dtype, "kv_dtype": kv_dtype}
    block = grouped_case([decodes(0, 1)], 1, 64, **options).case.block_tokens
    tails = [1, block - 1, block, block + 1]
    case = grouped_case(
        [decodes(3, *tails), decodes(0, *tails), decodes(1, block)], 2, 64, **options
    )
    check(partial(planned, kv_dtype=kv_dtype), case, heads=4)


@pytest.mark.parametrize("group", [1, 4, 7])
def test_grouped_queries_and_few_rows(group: int) -> None:
    """Few rows are gathered, eight or more are read where they lie."""
    case = grouped_case([decodes(2, 3, 40, 70), decodes(1, 9)], 3, 64)
    check(planned, case, heads=3 * group)


@pytest.mark.parametrize("budget", [1, 1 << 17, 1 << 30])
def test_long_prefixes_and_ragged_rows_in_any_cut(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(prefix_plan, "PART_BYTES", budget)
    monkeypatch.setattr(decode_direct, "MAX_INDICES", budget)
    groups = [decodes(13, 1, 200, 33, 2), decodes(0, 64, 7, 250), decodes(4, 1)]
    check(planned, grouped_case(groups, 2, 64), heads=4)


def test_soft_cap() -> None:
    groups = [decodes(2, 9, 65, 1, 1, 1, 2, 3), decodes(0, 5)]
    check(planned, grouped_case(groups, 2, 64), heads=2, soft_cap=1.5)


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_sinks_count_once_in_rows_that_share_a_prefix(soft_cap: float | None) -> None:
    case = grouped_case([decodes(3, 1, 40, 70, 2, 5, 6, 7), decodes(1, 9), decodes(0, 33)], 2, 64)
    check(planned, case, heads=6, sinks=some_sinks(6, case.case), soft_cap=soft_cap)


def test_the_prefix_is_read_through_the_first_row_alone() -> None:
    case = grouped_case([decodes(2, 5, 6, 7)], 2, 64)
    for table_row in case.table_rows[1:].tolist():
        case.case.table[table_row, :, :2] = 2**30
    check(planned, case, heads=4)


@pytest.mark.parametrize("position", [0, 63, 64, 70])
def test_a_corrupted_token_changes_the_rows_that_see_it(position: int) -> None:
    case = grouped_case([decodes(2, 9, 6)], 1, 64, block=16)
    query = random_query(2, 1, case.case)
    before = planned(query, *case.arguments(), **case.options())
    case.case.place(int(case.table_rows[0]), 0, position, 1).add_(1.0)
    after = planned(query, *case.arguments(), **case.options())
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1]) == (position >= 64)


def test_a_row_that_ends_with_its_prefix_is_refused() -> None:
    case = grouped_case([decodes(2, 5, 0)], 1, 64)
    query = random_query(2, 1, case.case)
    with pytest.raises(ValueError, match="no key of its own"):
        planned(query, *case.arguments(), **case.options())
