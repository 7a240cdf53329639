"""Attention of rows that share prefixes, each prefix read once; plain-torch twin of the kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.cpu.prefix_softmax import (
    PART_BYTES,
    PooledKeys,
    RunningSoftmax,
    add_distinct,
    add_prefix,
)
from muxcluster.kernels.cpu.prefix_tiles import GroupedRows, batches
from muxcluster.kernels.layout import (
    check_attention,
    check_index,
    check_sinks,
    check_table,
    half_rows,
    stored_in,
)
from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def prefix_attention(
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
    """Attention output [tokens, heads, head_dim] in the query's type (BatchLLM §4.4).

    The rows of a prefix group see the same first tokens. These are read once a group and KV
    head, as matrix products with all queries of the group; only the distinct rest is read row by
    row, and the two are merged by online softmax. The result is that of `paged_decode` (rows of
    one token) or `paged_prefill` on the same rows.

    query: [tokens, heads, head_dim]; heads is a multiple of kv_heads (grouped-query attention).
    pool: uint8 [num_blocks, block_bytes], the new tokens' K and V already written.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view.
    table_rows: int [rows], rows of a group side by side. lengths: int [rows], tokens of context
        including the row's last query; a row of length 0 yields zeros.
    from_right: bool [max_seqs]; it does not matter for a prefix, whose blocks are full.
    group_offsets: int [groups + 1]; group i is rows offsets[i] to offsets[i + 1], possibly none.
    prefix_lengths: int [groups], shared tokens: a multiple of block_tokens (0: nothing shared)
        that every query of the group sees whole. Read through the table of the group's first
        row; the other rows' entries for these columns are not read.
    scale: factor on the scores. soft_cap: scores s become soft_cap * tanh(s / soft_cap).
    sinks, kv_dtype: as in `paged_decode`.
    query_offsets: int [rows + 1]; row i's queries are query[offsets[i] : offsets[i + 1]], at its
        last positions (a prompt chunk beside decodes). None: one query a row.

    int is int32 or int64. What a block holds outside of the sequences' own tokens (even NaN)
    does not matter. Raises ValueError for wrong shapes, types, strides, offsets or lengths; the
    kernel on a GPU reads no values on the host and so refuses only shapes, types and strides.
    """
    grouped = (table, table_rows, lengths, from_right, group_offsets, prefix_lengths)
    check_prefix_attention(query, *grouped, soft_cap, query_offsets)
    check_sinks(query, sinks)
    tokens, heads, head_dim = query.shape
    kv_heads = table.shape[1]
    halves = half_rows(pool, stored_in(query, kv_dtype), block_tokens, head_dim)
    rows = GroupedRows.read(
        table_rows, lengths, group_offsets, prefix_lengths, query_offsets, tokens
    )
    rows.check(block_tokens, table.shape[2])
    wide = torch.promote_types(query.dtype, torch.float32)
    scaled = query.to(wide).reshape(tokens, kv_heads, heads // kv_heads, head_dim) * scale
    pooled = PooledKeys(halves, table, from_right, block_tokens, head_dim)
    grouped_sinks = None if sinks is None else sinks.view(kv_heads, -1)
    attended = _attention(scaled, rows, pooled, soft_cap, grouped_sinks)
    return attended.to(query.dtype).view(query.shape)


def _attention(
    query: Tensor,
    rows: GroupedRows,
    pooled: PooledKeys,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of scaled queries [tokens, kv_heads, group, head_dim], in the same shape.

    sinks: [kv_heads, group], None: the model has none.
    """
    running = RunningSoftmax.empty(query)
    for group, prefix in enumerate(rows.prefixes):
        first, last = rows.groups[group], rows.groups[group + 1]
        tokens = torch.arange(rows.offsets[first], rows.offsets[last])
        if prefix and len(tokens):
            blocks = pooled.table[rows.table_rows[first], :, : prefix // pooled.block_tokens]
            add_prefix(running, query, tokens, pooled, blocks, soft_cap)
    _, kv_heads, _, head_dim = query.shape
    budget = PART_BYTES // (2 * kv_heads * pooled.block_tokens * head_dim * query.element_size())
    for batch in batches(sorted(rows.tiles(pooled.block_tokens)), budget):
        add_distinct(running, query, batch, pooled, soft_cap)
    return running.output(sinks)


def check_prefix_attention(
    query: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    group_offsets: Tensor,
    prefix_lengths: Tensor,
    soft_cap: float | None,
    query_offsets: Tensor | None,
) -> None:
    """Raise ValueError for wrong shapes, types or strides; reads no values."""
    check_table(table, from_right)
    check_attention(query, table, None, soft_cap)
    rows = table_rows.shape[0] if table_rows.dim() else -1
    groups = prefix_lengths.shape[0] if prefix_lengths.dim() else -1
    check_index("table_rows", table_rows, rows)
    check_index("lengths", lengths, rows)
    check_index("prefix_lengths", prefix_lengths, groups)
    check_index("group_offsets", group_offsets, groups + 1)
    if query_offsets is not None:
        check_index("query_offsets", query_offsets, rows + 1)
    elif len(query) != rows:
        raise ValueError(f"query of {len(query)} tokens is not one for each of {rows} rows")
