"""Attention of one new token a sequence over its blocks; plain-torch twin of the Triton kernel."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.layout import check_attention, check_index, check_table, half_rows, token_positions
from kernels.on_gpu import triton_kernel

GROUP_BYTES = 4 << 20
"""Gathered K and V stay below this, so that they are still in the cache when they are read."""


class _Rows(NamedTuple):
    """Rows by width (columns to read): int64 [rows] each; keys begins <= position < lengths."""

    slots: Tensor
    begins: Tensor
    lengths: Tensor


def paged_decode(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    slots: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Attention output [rows, heads, head_dim] in the query's type.

    query: [rows, heads, head_dim]; heads is a multiple of kv_heads (grouped-query attention).
    pool: uint8 [num_blocks, block_bytes], the new token's K and V already written.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view.
    slots: int32 or int64 [rows]. lengths: int32 or int64 [rows], tokens of context including
        the current one; a row of length 0 yields zeros.
    from_right: bool [max_seqs].
    scale: factor on the scores. sliding_window: only the last so many keys are seen.
    soft_cap: scores s become soft_cap * tanh(s / soft_cap).

    Only columns in use are read, and what a block holds outside of the sequence's own tokens
    (even NaN) does not matter. Arithmetic is in fp32 at least.
    Raises ValueError for wrong shapes, types or strides.
    """
    if query.is_cuda:
        output: Tensor = triton_kernel("paged_decode")(
            query,
            pool,
            table,
            slots,
            lengths,
            from_right,
            block_tokens=block_tokens,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
        )
        return output
    check_table(table, from_right)
    check_attention(query, table, sliding_window, soft_cap)
    rows, heads, head_dim = query.shape
    kv_heads = table.shape[1]
    check_index("slots", slots, rows)
    check_index("lengths", lengths, rows)
    halves = half_rows(pool, query.dtype, block_tokens, head_dim)
    all_rows, widths, order = _by_width(slots, lengths, sliding_window, block_tokens)
    grouped = query.index_select(0, order).reshape(rows, kv_heads, heads // kv_heads, head_dim)
    attended = torch.zeros_like(grouped, memory_format=torch.contiguous_format)
    budget = GROUP_BYTES // (2 * block_tokens * head_dim * query.element_size())
    for part, narrowest, widest in _groups(widths, budget // kv_heads):
        some = _Rows(*(each[part] for each in all_rows))
        blocks, hidden = _reads(some, widest, table, from_right, block_tokens)
        step = max(1, budget // (len(some.slots) * widest))
        tail = (narrowest - 1) * block_tokens
        cuts = (torch.split(each, step, dim=1) for each in (attended[part], grouped[part], blocks))
        for result, queries, ids in zip(*cuts, strict=True):
            attend = _attend(queries, halves, ids, hidden, tail, scale=scale, soft_cap=soft_cap)
            result.copy_(attend)
    return torch.empty_like(attended).index_copy_(0, order, attended).view(rows, heads, head_dim)


def _by_width(
    slots: Tensor, lengths: Tensor, sliding_window: int | None, block_tokens: int
) -> tuple[_Rows, list[int], Tensor]:
    """The rows sorted by width, the widths, and which row of the batch each one is."""
    begins = torch.zeros_like(lengths)
    if sliding_window is not None:
        begins = (lengths - sliding_window).clamp_(min=0)
    ends = (lengths + block_tokens - 1) // block_tokens
    widths, order = (ends - begins // block_tokens).sort(stable=True)
    rows = _Rows(*(each[order].long() for each in (slots, begins, lengths)))
    return rows, widths.tolist(), order


def _groups(widths: list[int], budget: int) -> Iterator[tuple[slice, int, int]]:
    """Cut sorted widths so that a group padded to its widest keeps to `budget` columns.

    Yields rows, narrowest and widest. Rows of width 0 are left out; one wider than the budget is
    alone.
    """
    start = bisect_right(widths, 0)
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and (stop + 1 - start) * widths[stop] <= budget:
            stop += 1
        yield slice(start, stop), widths[start], widths[stop - 1]
        start = stop


def _reads(
    rows: _Rows, widest: int, table: Tensor, from_right: Tensor, block_tokens: int
) -> tuple[Tensor, Tensor]:
    """Blocks [rows, kv_heads, widest] to gather, and which of their tokens are hidden: bool
    [rows, widest * block_tokens].

    Past a row's last column that column is repeated, so that only its own blocks are read.
    """
    lengths = rows.lengths.unsqueeze(1)
    steps = torch.arange(widest, device=table.device)
    columns = rows.begins.unsqueeze(1) // block_tokens + steps
    positions = token_positions(columns, from_right[rows.slots].unsqueeze(1), block_tokens)
    hidden = (positions < rows.begins.unsqueeze(1)) | (positions >= lengths)
    own = torch.minimum(columns, (lengths - 1) // block_tokens)
    return table[rows.slots.unsqueeze(1), :, own].transpose(1, 2), hidden


def _attend(
    query: Tensor,
    halves: Tensor,
    blocks: Tensor,
    hidden: Tensor,
    tail: int,
    *,
    scale: float,
    soft_cap: float | None,
) -> Tensor:
    """Attention [rows, kv_heads, group, head_dim] of rows padded to one width.

    query: as the result. halves: the pool's K and V halves. blocks: [rows, kv_heads, columns].
    hidden: bool [rows, tokens], keys not to be seen. tail: tokens before it were all written by
    their own sequence, so only later values can be NaN.
    """
    rows, num_kv_heads, _ = blocks.shape
    ids = 2 * blocks.reshape(-1).long()
    gathered = halves.index_select(0, torch.cat((ids, ids + 1)))
    keys, values = gathered.view(2, rows * num_kv_heads, -1, query.shape[-1])
    if keys.dtype.itemsize < 4:
        query, keys, values = query.float(), keys.float(), values.float()
    scores = torch.bmm(query.flatten(0, 1) * scale, keys.transpose(1, 2))
    if soft_cap is not None:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    scores.view(rows, -1, scores.shape[-1]).masked_fill_(hidden.unsqueeze(1), -torch.inf)
    values.view(rows, num_kv_heads, -1, values.shape[-1])[:, :, tail:].masked_fill_(
        hidden[:, None, tail:, None], 0.0
    )
    return torch.bmm(scores.softmax(-1), values).view(query.shape)
