"""Rows in prefix groups over a pool whose other bytes are NaN, and what attention must give."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from tests.kernels.paged_cases import TOLERANCES, PagedCase, filled_case, random_query


@dataclass
class Group:
    """A shared prefix in blocks, and each row's (distinct tokens, queries)."""

    prefix_blocks: int
    rows: list[tuple[int, int]]


@dataclass
class GroupedCase:
    """counts: queries a row. lengths: context a row, in the order of `table_rows`."""

    case: PagedCase
    table_rows: Tensor
    lengths: Tensor
    counts: list[int]
    group_offsets: Tensor
    prefix_lengths: Tensor

    def arguments(self) -> tuple[Tensor, ...]:
        """What follows the query."""
        case = self.case
        return (
            case.pool,
            case.table,
            self.table_rows,
            self.lengths,
            case.from_right,
            self.group_offsets,
            self.prefix_lengths,
        )

    def options(self) -> dict:
        offsets = torch.tensor([0, *accumulate(self.counts)], dtype=torch.int32)
        single = all(count == 1 for count in self.counts)
        return {
            "block_tokens": self.case.block_tokens,
            "scale": 0.3,
            "query_offsets": None if single else offsets,
        }


def decodes(prefix_blocks: int, *distinct: int) -> Group:
    return Group(prefix_blocks, [(tokens, 1) for tokens in distinct])


def grouped_case(groups: list[Group], kv_heads: int, head_dim: int, **options) -> GroupedCase:
    """Rows in shuffled table rows; a group's rows hold the same blocks for their prefix."""
    block = filled_case([1], 1, head_dim, **options).block_tokens
    rows = [(group.prefix_blocks * block, *row) for group in groups for row in group.rows]
    table_rows = np.random.default_rng(3).permutation(len(rows)).tolist()
    lengths = [0] * len(rows)
    for table_row, (prefix, distinct, _) in zip(table_rows, rows, strict=True):
        lengths[table_row] = prefix + distinct
    rights = [table_row % 3 == 1 for table_row in range(len(rows))]
    case = filled_case(lengths, kv_heads, head_dim, rights=rights, **options)
    offsets = [0, *accumulate(len(group.rows) for group in groups)]
    for index, group in enumerate(groups):
        members = table_rows[offsets[index] : offsets[index + 1]]
        for member in members[1:]:
            share(case, members[0], member, group.prefix_blocks)
    return GroupedCase(
        case,
        torch.tensor(table_rows, dtype=torch.int32),
        torch.tensor([prefix + distinct for prefix, distinct, _ in rows], dtype=torch.int32),
        [count for *_, count in rows],
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor([group.prefix_blocks * block for group in groups], dtype=torch.int32),
    )


def share(case: PagedCase, first: int, member: int, columns: int) -> None:
    """Let `member` hold the first columns' blocks of `first`, and their tokens.

    Where the two fill blocks from different ends the tokens' order differs, which attention to
    all of them does not see.
    """
    case.table[member, :, :columns] = case.table[first, :, :columns]
    tokens = columns * case.block_tokens
    case.keys[member][:tokens] = case.keys[first][:tokens]
    case.values[member][:tokens] = case.values[first][:tokens]


def check(function: Callable[..., Tensor], grouped: GroupedCase, heads: int, **options) -> Tensor:
    """`function` must give dense attention in float64 of every row."""
    query = random_query(sum(grouped.counts), heads, grouped.case)
    output = function(query, *grouped.arguments(), **grouped.options() | options)
    assert output.shape == query.shape and output.dtype == query.dtype
    limit = TOLERANCES[grouped.case.dtype]
    known = {name: options.get(name) for name in ("soft_cap", "sinks")}
    start = 0
    for table_row, length, count in zip(
        grouped.table_rows.tolist(), grouped.lengths.tolist(), grouped.counts, strict=True
    ):
        part = slice(start, start + count)
        start += count
        expected = torch.zeros(count, heads, grouped.case.head_dim, dtype=torch.float64)
        if length and count:
            expected = grouped.case.attention(query[part], table_row, length, scale=0.3, **known)
        torch.testing.assert_close(output[part].double(), expected, rtol=limit, atol=limit)
    return output
