"""Attention of one batch over the unit's pool, and what its twin on the CPU does likewise."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kernels.kv_write import kv_write
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill
from kernels.prefix_attention import prefix_attention
from muxcluster.engine.arena import ModelArena
from muxcluster.engine.attention import LayerCall
from muxcluster.engine.batch import TokenBatch


@dataclass(frozen=True, slots=True, eq=False)
class PagedAttention:
    """Attention of one batch over the unit's pool (uint8 [num_blocks, block_bytes])."""

    pool: Tensor
    arena: ModelArena
    batch: TokenBatch

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Writes the new keys and values into the pool, then attends over it."""
        arena, batch = self.arena, self.batch
        table = arena.tables[:, call.layer]
        kv_write(
            self.pool,
            key,
            value,
            table,
            batch.token_slots,
            batch.positions,
            arena.from_right,
            arena.block_tokens,
        )
        return by_kind(
            query,
            batch,
            single=lambda rows: self._single(rows, table, call),
            many=lambda rows: attend_many(rows, self.pool, arena, batch, call),
        )

    def _single(self, query: Tensor, table: Tensor, call: LayerCall) -> Tensor:
        rows = self.batch.single
        assert rows is not None
        if rows.groups is not None and call.sliding_window is None:
            return prefix_attention(
                query,
                self.pool,
                table,
                rows.slots,
                rows.lengths,
                self.arena.from_right,
                rows.groups.offsets,
                rows.groups.prefix_lengths,
                block_tokens=self.arena.block_tokens,
                scale=call.scale,
                soft_cap=call.soft_cap,
            )
        return paged_decode(
            query,
            self.pool,
            table,
            rows.slots,
            rows.lengths,
            self.arena.from_right,
            block_tokens=self.arena.block_tokens,
            scale=call.scale,
            sliding_window=call.sliding_window,
            soft_cap=call.soft_cap,
        )


def by_kind(
    query: Tensor,
    batch: TokenBatch,
    *,
    single: Callable[[Tensor], Tensor],
    many: Callable[[Tensor], Tensor],
) -> Tensor:
    """Rows of one token through `single`, the others through `many`; one call where all are alike.

    query: [tokens, heads, head_dim], as the functions' arguments and answers and what is returned.
    """
    if batch.single is None:
        return many(query)
    if batch.many is None:
        return single(query)
    output = query.new_empty(query.shape)
    for rows, attend in ((batch.single, single), (batch.many, many)):
        output[rows.tokens] = attend(query[rows.tokens])
    return output


def attend_many(
    query: Tensor, pool: Tensor, arena: ModelArena, batch: TokenBatch, call: LayerCall
) -> Tensor:
    """Attention of the batch's rows of several tokens; query: theirs, [tokens, heads, head_dim]."""
    rows = batch.many
    assert rows is not None
    return paged_prefill(
        query,
        pool,
        arena.tables[:, call.layer],
        rows.slots,
        rows.query_offsets,
        rows.starts,
        arena.from_right,
        block_tokens=arena.block_tokens,
        scale=call.scale,
        sliding_window=call.sliding_window,
        soft_cap=call.soft_cap,
    )
