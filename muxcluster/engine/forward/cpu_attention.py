"""Paged attention on the CPU with one plan per step instead of one per layer."""

import torch
from torch import Tensor

from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.batch import ManyRows, TokenBatch
from muxcluster.engine.forward.paged_attention import attend_latents, attend_many, by_kind, picked
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.kernels.attention.latent_attention import latent_halves
from muxcluster.kernels.cpu.decode_direct import DirectPlan
from muxcluster.kernels.cpu.decode_plan import DecodePlan
from muxcluster.kernels.cpu.decode_plans import decode_plan
from muxcluster.kernels.cpu.latent_rows import LatentPlan
from muxcluster.kernels.cpu.prefix_plan import PrefixPlan
from muxcluster.kernels.cpu.sinks import attend_with_sinks
from muxcluster.kernels.kv_write import WritePlan, write_plan
from muxcluster.kernels.layout import half_rows
from muxcluster.kernels.native.attention import NativeDecode, NativeWrite, suits
from muxcluster.kernels.native.step import StepRows

# Mean position of the tokens of rows of several up to which they are computed one by one: a prompt
# of 100 tokens takes 0.8 times as long then, one of 400 0.9, one of 800 1.2 (56M, 2 threads).
_LONG = 200.0


class PlannedAttention:
    """`PagedAttention` for one batch: the same numbers with fewer operators."""

    # On the CPU small operators cost most.

    def __init__(self, pool: Tensor, arena: ModelArena, batch: TokenBatch) -> None:
        """pool: uint8 [num_blocks, block_bytes]."""
        self._pool = pool
        self._arena = arena
        self._batch = batch
        self._halves: Tensor | None = None
        self._write: WritePlan | NativeWrite | None = None
        self._decodes: dict[int | None, NativeDecode | DirectPlan | DecodePlan | PrefixPlan] = {}
        self._latents: LatentPlan | None = None

    def step_rows(self, dtype: torch.dtype, head_dim: int) -> StepRows | None:
        """Return the batch for a step in one call of the C++ kernels, None: it has other rows.

        No prefix may be shared. Every token is a row of its own there, which reads its context for
        itself: those of rows of several tokens must be short, and their keys and values in the
        pool as they were computed. dtype: the model's.
        """
        arena, batch, single = self._arena, self._batch, self._batch.single
        stored = arena.kv_dtype or dtype
        if single is not None and single.groups is not None:
            return None
        fresh = None if batch.fresh is None else batch.fresh.rows
        several = [rows.tokens for rows in (batch.many, fresh) if rows is not None]
        if several and stored != dtype:
            return None
        if any(float(batch.positions[each].float().mean()) > _LONG for each in several):
            return None
        halves = half_rows(self._pool, stored, arena.block_tokens, head_dim)
        if not suits(halves, arena.tables):
            return None
        return StepRows(
            batch.token_rows,
            batch.positions,
            halves,
            arena.tables,
            arena.from_right,
            arena.block_tokens,
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Write the new keys and values into the pool, then attend over it."""
        halves = self._written(key, value, call)
        return by_kind(
            query,
            self._batch,
            single=lambda tokens: self._single(picked(query, tokens), halves, call),
            many=lambda tokens: self._many(picked(query, tokens), self._batch.many, call),
            fresh=lambda tokens: self._fresh((query, key, value), tokens, call),
        )

    def attend_latent(self, query: Tensor, latent: Tensor, call: LayerCall) -> Tensor:
        """Write the new latents into the pool, then attend over it."""
        halves = self._written(*latent_halves(latent, self._arena.tables.shape[2]), call)
        batch = self._batch
        fresh = None if batch.fresh is None else batch.fresh.rows
        return by_kind(
            query,
            batch,
            single=lambda tokens: self._single_latent(picked(query, tokens), halves, call),
            many=lambda tokens: self._many_latent(picked(query, tokens), batch.many, call),
            fresh=lambda tokens: self._many_latent(picked(query, tokens), fresh, call),
            value_width=call.value_width,
        )

    def _single_latent(self, query: Tensor, halves: Tensor, call: LayerCall) -> Tensor:
        plan, arena, rows = self._latents, self._arena, self._batch.single
        assert rows is not None and call.value_width is not None
        if plan is None:
            plan = self._latents = LatentPlan(
                arena.tables,
                rows.table_rows,
                rows.lengths,
                arena.from_right,
                block_tokens=arena.block_tokens,
                token_bytes=query.shape[2] * query.element_size(),
            )
        attended = plan.attend(
            query, halves, call.layer, value_width=call.value_width, scale=call.scale
        )
        return attended.to(query.dtype)

    def _many_latent(self, query: Tensor, rows: ManyRows | None, call: LayerCall) -> Tensor:
        assert rows is not None
        return attend_latents(query, self._pool, self._arena, rows, call)

    def _written(self, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """Write new keys and values into the pool; return its view from `half_rows`."""
        halves = self._halves
        if halves is None:
            block_tokens = self._arena.block_tokens
            kv_dtype = self._arena.kv_dtype or key.dtype
            halves = half_rows(self._pool, kv_dtype, block_tokens, key.shape[-1])
            self._halves = halves
            arena, batch = self._arena, self._batch
            where = (arena.tables, batch.token_rows, batch.positions)
            self._write = write_plan(halves, *where, arena.from_right, block_tokens)
        assert self._write is not None
        self._write.write(key, value, halves, call.layer)
        return halves

    def _many(self, query: Tensor, rows: ManyRows | None, call: LayerCall) -> Tensor:
        assert rows is not None
        return attend_many(query, self._pool, self._arena, rows, call)

    def _fresh(
        self, heads: tuple[Tensor, Tensor, Tensor], tokens: Tensor | None, call: LayerCall
    ) -> Tensor:
        fresh = self._batch.fresh
        assert fresh is not None
        return self._many(picked(heads[0], tokens), fresh.rows, call)

    def _single(self, query: Tensor, halves: Tensor, call: LayerCall) -> Tensor:
        rows, heads, head_dim = query.shape
        kv_heads = self._arena.tables.shape[2]
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
        plan = self._decode_plan(call.sliding_window, grouped, halves)
        attended = attend_with_sinks(
            plan,
            grouped,
            halves,
            call.layer,
            scale=call.scale,
            soft_cap=call.soft_cap,
            sinks=call.sinks,
        )
        return attended.to(query.dtype).view(query.shape)

    def _decode_plan(
        self, window: int | None, query: Tensor, halves: Tensor
    ) -> NativeDecode | DirectPlan | DecodePlan | PrefixPlan:
        """Return the plan of all layers with this window; most models have one window or none."""
        plan = self._decodes.get(window)
        if plan is None:
            plan = self._decodes[window] = self._new_plan(window, query, halves)
        return plan

    def _new_plan(
        self, window: int | None, query: Tensor, halves: Tensor
    ) -> NativeDecode | DirectPlan | DecodePlan | PrefixPlan:
        rows, arena = self._batch.single, self._arena
        assert rows is not None
        where = (query, halves, arena.tables, rows.table_rows, rows.lengths, arena.from_right)
        if rows.groups is not None and window is None:
            offsets, lengths = rows.groups.offsets, rows.groups.prefix_lengths
            return PrefixPlan(*where, offsets, lengths, block_tokens=arena.block_tokens)
        return decode_plan(*where, block_tokens=arena.block_tokens, sliding_window=window)
