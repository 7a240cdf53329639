"""Causal attention of prompt chunks over the pool; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.attention.prompt_attention import attend_grouped
from muxcluster.kernels.layout import (
    check_attention,
    check_index,
    check_sinks,
    check_table,
    half_rows,
    read_halves,
    stored_in,
)
from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def paged_prefill(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
) -> Tensor:
    """Attention output [tokens, heads, head_dim] in the query's type.

    query: [tokens, heads, head_dim], the rows' new tokens one after the other.
    pool: uint8 [num_blocks, block_bytes]; keys and values of earlier tokens and of the new ones
        are in it already.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view. table_rows: int [rows].
    query_offsets: int [rows + 1]; row i's queries are query[offsets[i] : offsets[i + 1]].
    starts: int [rows], position of each row's first query; > 0 continues a chunked prefill or
        follows a cached prefix.
    from_right: bool [max_seqs]. scale, sliding_window, soft_cap, sinks, kv_dtype: as in
        `paged_decode`.

    Only columns in use are read. Raises ValueError for wrong shapes, types or strides.
    """
    check_paged_prefill(
        query, table, table_rows, query_offsets, starts, from_right, sliding_window, soft_cap
    )
    check_sinks(query, sinks)
    tokens, heads, head_dim = query.shape
    bounds = _bounds(query_offsets, tokens)
    halves = half_rows(pool, stored_in(query, kv_dtype), block_tokens, head_dim)
    grouped_sinks = None if sinks is None else sinks.view(table.shape[1], -1)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for row, (table_row, start) in enumerate(
        zip(table_rows.tolist(), starts.tolist(), strict=True)
    ):
        new = slice(bounds[row], bounds[row + 1])
        if new.start == new.stop:
            continue
        end = start + new.stop - new.start
        begin = 0 if sliding_window is None else max(0, start + 1 - sliding_window)
        keys, values = _gather(
            halves,
            table[table_row],
            bool(from_right[table_row]),
            begin,
            end,
            (block_tokens, head_dim),
        )
        # [kv_heads, group, tokens, head_dim]; keys and values broadcast over the group.
        shape = (-1, table.shape[1], heads // table.shape[1], head_dim)
        grouped = query[new].reshape(shape).permute(1, 2, 0, 3)
        keys, values = (each.to(query.dtype) for each in (keys, values))
        attended = attend_grouped(
            grouped, keys, values, scale, sliding_window, soft_cap, grouped_sinks
        )
        output[new] = attended.permute(2, 0, 1, 3).flatten(1, 2)
    return output


def check_paged_prefill(
    query: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Raise ValueError unless the arguments are as `paged_prefill` says; reads no values."""
    check_table(table, from_right)
    check_attention(query, table, sliding_window, soft_cap)
    rows = table_rows.shape[0] if table_rows.dim() else -1
    check_index("table_rows", table_rows, rows)
    check_index("starts", starts, rows)
    check_index("query_offsets", query_offsets, rows + 1)


def _bounds(query_offsets: Tensor, tokens: int) -> list[int]:
    """Return the offsets as numbers. Raises ValueError unless they rise from 0 to `tokens`."""
    bounds: list[int] = query_offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != tokens or bounds != sorted(bounds):
        raise ValueError(f"query_offsets must rise from 0 to {tokens}, got {bounds}")
    return bounds


def _gather(
    halves: Tensor,
    table: Tensor,
    from_right: bool,
    begin: int,
    end: int,
    token_shape: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Return one sequence's keys and values [kv_heads, 1, end - begin, head_dim] by position.

    table: int32 [kv_heads, max_columns]. token_shape: block_tokens, head_dim.
    """
    block_tokens, head_dim = token_shape
    if end > table.shape[1] * block_tokens:
        raise ValueError(f"a row ends at {end}, beyond its table of {table.shape[1]} columns")
    first = begin // block_tokens
    blocks = table[:, first : -(-end // block_tokens)].long()
    ids = 2 * blocks.reshape(-1)
    gathered = read_halves(halves, torch.cat((ids, ids + 1)), head_dim)
    if from_right:
        gathered = gathered.view(-1, block_tokens, head_dim).flip(1)
    skipped = first * block_tokens
    both = gathered.view(2, table.shape[0], -1, head_dim)[:, :, begin - skipped : end - skipped]
    return both[0].unsqueeze(1), both[1].unsqueeze(1)
