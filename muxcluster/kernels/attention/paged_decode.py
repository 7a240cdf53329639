"""Attention of one new token per sequence over its blocks; plain-torch twin of the kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.cpu.decode_plans import decode_plan
from muxcluster.kernels.cpu.sinks import attend_with_sinks
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
def paged_decode(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return attention [rows, heads, head_dim] in the query's type.

    query: [rows, heads, head_dim]; heads is a multiple of kv_heads (grouped-query attention).
    pool: uint8 [num_blocks, block_bytes], the new token's K and V already written.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view.
    table_rows: int32 or int64 [rows], each row's row of `table`.
    lengths: int32 or int64 [rows], tokens of context including the current one; a row of length 0
    yields zeros.
    from_right: bool [max_seqs].
    scale: factor on the scores. sliding_window: only the last so many keys are seen.
    soft_cap: scores s become soft_cap * tanh(s / soft_cap).
    sinks: floating [heads], a logit of each query head that joins the denominator of its softmax
    and has no value (attention sinks of gpt-oss); None: none.
    kv_dtype: type in which keys and values are stored, see `kernels.layout`; None: the query's.

    Only columns in use are read, and what a block holds outside of the sequence's own tokens (even
    NaN) does not matter. Arithmetic is in fp32 at least. Raises ValueError for wrong shapes, types
    or strides.
    """
    check_paged_decode(query, table, table_rows, lengths, from_right, sliding_window, soft_cap)
    check_sinks(query, sinks)
    rows, heads, head_dim = query.shape
    kv_heads = table.shape[1]
    halves = half_rows(pool, stored_in(query, kv_dtype), block_tokens, head_dim)
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    plan = decode_plan(
        grouped,
        halves,
        table.unsqueeze(1),
        table_rows,
        lengths,
        from_right,
        block_tokens=block_tokens,
        sliding_window=sliding_window,
    )
    attended = attend_with_sinks(
        plan, grouped, halves, 0, scale=scale, soft_cap=soft_cap, sinks=sinks
    )
    return attended.to(query.dtype).view(rows, heads, head_dim)


def check_paged_decode(
    query: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Raise ValueError unless the arguments are as `paged_decode` says."""
    check_table(table, from_right)
    check_attention(query, table, sliding_window, soft_cap)
    check_index("table_rows", table_rows, len(query))
    check_index("lengths", lengths, len(query))
