"""Chooses the plan of decode attention for a pool, a model and a type on the CPU."""

from torch import Tensor

from muxcluster.kernels.cpu.decode_direct import DirectPlan, suits
from muxcluster.kernels.cpu.decode_plan import DecodePlan
from muxcluster.kernels.native import attention
from muxcluster.kernels.native.attention import NativeDecode


def decode_plan(
    query: Tensor,
    halves: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    sliding_window: int | None = None,
    begins: Tensor | None = None,
) -> NativeDecode | DirectPlan | DecodePlan:
    """Return the plan of one decode step.

    query: as for `attend`, its numbers do not matter. tables: [max_seqs, layers, kv_heads,
    max_columns]. begins: int64 [rows], where each row's keys begin; None: 0 or the window's begin.
    The rest as in `paged_decode`.
    """
    if attention.suits(halves, tables):
        return NativeDecode(
            tables,
            table_rows,
            lengths,
            from_right,
            block_tokens=block_tokens,
            sliding_window=sliding_window,
            begins=begins,
        )
    if suits(tables, halves, query):
        return DirectPlan(
            tables,
            table_rows,
            lengths,
            from_right,
            block_tokens=block_tokens,
            group=query.shape[2],
            sliding_window=sliding_window,
            begins=begins,
        )
    return DecodePlan(
        tables,
        table_rows,
        lengths,
        from_right,
        block_tokens=block_tokens,
        token_bytes=2 * query.shape[-1] * query.element_size(),
        sliding_window=sliding_window,
        begins=begins,
    )
