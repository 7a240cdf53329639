"""Attention of one batch over the unit's pool, and what it has in common with its CPU twin."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.batch import ManyRows, TokenBatch
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.kernels.attention.latent_attention import latent_attention, latent_halves
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.paged_prefill import paged_prefill
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.attention.prompt_attention import prompt_attention, takes_prompts
from muxcluster.kernels.kv_write import kv_write


@dataclass(frozen=True, slots=True, eq=False)
class PagedAttention:
    """Attention of one batch over the unit's pool (uint8 [num_blocks, block_bytes])."""

    pool: Tensor
    arena: ModelArena
    batch: TokenBatch

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Write the new keys and values into the pool, then attend over it.

        Rows that start at position 0 attend to the new keys themselves where that is faster and the
        pool holds the same (not rounded ones), and no sinks are to be counted.
        """
        arena, batch = self.arena, self.batch
        table = arena.tables[:, call.layer]
        kv_write(
            self.pool,
            key,
            value,
            table,
            batch.token_rows,
            batch.positions,
            arena.from_right,
            arena.block_tokens,
            kv_dtype=arena.kv_dtype,
        )
        return by_kind(
            query,
            batch,
            single=lambda tokens: self._single(picked(query, tokens), table, call),
            many=lambda tokens: self._many(picked(query, tokens), batch.many, call),
            fresh=lambda tokens: self._fresh((query, key, value), tokens, call),
        )

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        """Write the new latents into the pool, then attend over it."""
        arena, batch = self.arena, self.batch
        fresh = None if batch.fresh is None else batch.fresh.rows
        table = arena.tables[:, call.layer]
        kv_write(
            self.pool,
            *latent_halves(latent, table.shape[1]),
            table,
            batch.token_rows,
            batch.positions,
            arena.from_right,
            arena.block_tokens,
        )
        return by_kind(
            query,
            batch,
            single=lambda tokens: self._single_latent(picked(query, tokens), call),
            many=lambda tokens: self._latents(picked(query, tokens), batch.many, call),
            fresh=lambda tokens: self._latents(picked(query, tokens), fresh, call),
            value_width=call.value_width,
        )

    def _single_latent(self, query: Tensor, call: LayerCall) -> Tensor:
        single, arena = self.batch.single, self.arena
        assert single is not None
        offsets = torch.arange(len(single.lengths) + 1, device=query.device)
        rows = ManyRows(single.tokens, single.table_rows, single.lengths - 1, offsets)
        return attend_latents(query, self.pool, arena, rows, call, is_decode=True)

    def _latents(self, query: Tensor, rows: ManyRows | None, call: LayerCall) -> Tensor:
        assert rows is not None
        return attend_latents(query, self.pool, self.arena, rows, call)

    def _many(self, query: Tensor, rows: ManyRows | None, call: LayerCall) -> Tensor:
        assert rows is not None
        return attend_many(query, self.pool, self.arena, rows, call)

    def _fresh(
        self, heads: tuple[Tensor, Tensor, Tensor], tokens: Tensor | None, call: LayerCall
    ) -> Tensor:
        """Attend rows that start at position 0. heads: query, key and value of the whole batch."""
        fresh = self.batch.fresh
        assert fresh is not None
        query, key, value = heads
        is_known = self.arena.kv_dtype is None and call.sinks is None
        if not is_known or not takes_prompts(query, key, call.scale, call.soft_cap):
            return self._many(picked(query, tokens), fresh.rows, call)
        return prompt_attention(
            picked(query, tokens),
            picked(key, tokens),
            picked(value, tokens),
            fresh.offsets,
            fresh.max_tokens,
            scale=call.scale,
            sliding_window=call.sliding_window,
        )

    def _single(self, query: Tensor, table: Tensor, call: LayerCall) -> Tensor:
        rows = self.batch.single
        assert rows is not None
        if rows.groups is not None and call.sliding_window is None:
            return prefix_attention(
                query,
                self.pool,
                table,
                rows.table_rows,
                rows.lengths,
                self.arena.from_right,
                rows.groups.offsets,
                rows.groups.prefix_lengths,
                block_tokens=self.arena.block_tokens,
                scale=call.scale,
                soft_cap=call.soft_cap,
                sinks=call.sinks,
                kv_dtype=self.arena.kv_dtype,
            )
        return paged_decode(
            query,
            self.pool,
            table,
            rows.table_rows,
            rows.lengths,
            self.arena.from_right,
            block_tokens=self.arena.block_tokens,
            scale=call.scale,
            sliding_window=call.sliding_window,
            soft_cap=call.soft_cap,
            sinks=call.sinks,
            kv_dtype=self.arena.kv_dtype,
        )


# Attention of the batch's tokens at the given places, None: of all; [tokens, heads, head_dim].
Attend = Callable[[Tensor | None], Tensor]


def by_kind(
    query: Tensor,
    batch: TokenBatch,
    *,
    single: Attend,
    many: Attend,
    fresh: Attend,
    value_width: int | None = None,
) -> Tensor:
    """Return attention [tokens, heads, head_dim], each kind of rows computed by its own function.

    query: [tokens, heads, head_dim]. value_width: elements of the result in place of head_dim.
    Makes no copy where all rows are of one kind.
    """
    kinds: list[tuple[Tensor, Attend]] = []
    if batch.single is not None:
        kinds.append((batch.single.tokens, single))
    if batch.many is not None:
        kinds.append((batch.many.tokens, many))
    if batch.fresh is not None:
        kinds.append((batch.fresh.rows.tokens, fresh))
    if len(kinds) == 1:
        return kinds[0][1](None)
    output = query.new_empty((*query.shape[:2], value_width or query.shape[2]))
    for tokens, attend in kinds:
        output[tokens] = attend(tokens)
    return output


def picked(heads: Tensor, tokens: Tensor | None) -> Tensor:
    """Return the rows of [tokens, heads, head_dim] at the given places; None: all, not copied."""
    return heads if tokens is None else heads[tokens]


def attend_many(
    query: Tensor, pool: Tensor, arena: ModelArena, rows: ManyRows, call: LayerCall
) -> Tensor:
    """Return attention of `rows` over the pool; query: theirs, [tokens, heads, head_dim]."""
    return paged_prefill(
        query,
        pool,
        arena.tables[:, call.layer],
        rows.table_rows,
        rows.query_offsets,
        rows.starts,
        arena.from_right,
        block_tokens=arena.block_tokens,
        scale=call.scale,
        sliding_window=call.sliding_window,
        soft_cap=call.soft_cap,
        sinks=call.sinks,
        kv_dtype=arena.kv_dtype,
    )


def attend_latents(
    query: Tensor,
    pool: Tensor,
    arena: ModelArena,
    rows: ManyRows,
    call: LayerCall,
    *,
    is_decode: bool = False,
) -> Tensor:
    """Return attention [tokens, heads, value_width] of `rows` over latents in the pool.

    query: theirs, [tokens, heads, width]. is_decode: each row has one token.
    """
    assert call.value_width is not None
    return latent_attention(
        query,
        pool,
        arena.tables[:, call.layer],
        rows.table_rows,
        rows.query_offsets,
        rows.starts,
        arena.from_right,
        block_tokens=arena.block_tokens,
        value_width=call.value_width,
        scale=call.scale,
        is_decode=is_decode,
    )
