"""Our attention on transformers' attention interface: keys and values live in the unit's pool.

The batch travels as a keyword argument through the model's own forward, so nothing is global
but the registration of the name.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from kernels.kv_write import kv_write
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill
from muxcluster.engine.arena import ModelArena
from muxcluster.engine.batch import TokenBatch

ATTENTION_NAME = "muxcluster"
"""The `attn_implementation` of our models. No mask function is registered under it, so
transformers builds no mask: causality and sliding windows are the kernels' own."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """How one layer asks for attention.

    scale: factor on the scores. sliding_window: the last so many keys are seen, None means all.
    soft_cap: as in `paged_decode`. extras: further arguments of the layer that are not None.
    """

    layer: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    extras: frozenset[str] = frozenset()


class LayerAttention(Protocol):
    """What a forward is given as `attention_batch`; called once a layer."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        """query: [tokens, heads, head_dim]; key, value: [tokens, kv_heads, head_dim].

        Returns [tokens, heads, head_dim].
        """
        ...


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
        if batch.single is None:
            return self._many(query, table, call)
        if batch.many is None:
            return self._single(query, table, call)
        output = query.new_empty(query.shape)
        single, many = batch.single.tokens, batch.many.tokens
        output[single] = self._single(query[single], table, call)
        output[many] = self._many(query[many], table, call)
        return output

    def _single(self, query: Tensor, table: Tensor, call: LayerCall) -> Tensor:
        rows = self.batch.single
        assert rows is not None
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

    def _many(self, query: Tensor, table: Tensor, call: LayerCall) -> Tensor:
        rows = self.batch.many
        assert rows is not None
        return paged_prefill(
            query,
            self.pool,
            table,
            rows.slots,
            rows.query_offsets,
            rows.starts,
            self.arena.from_right,
            block_tokens=self.arena.block_tokens,
            scale=call.scale,
            sliding_window=call.sliding_window,
            soft_cap=call.soft_cap,
        )


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The interface of transformers: query [1, heads, tokens, head_dim], key and value likewise.

    Returns [1, tokens, heads, head_dim] and no weights. Raises KeyError where the model did not
    hand our batch down.
    """
    batch: LayerAttention = options.pop("attention_batch")
    scale = options.pop("scaling", None)
    call = LayerCall(
        layer=_layer_of(module),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        sliding_window=options.pop("sliding_window", None),
        soft_cap=options.pop("softcap", None),
        extras=frozenset(
            name
            for name, option in (("attention_mask", attention_mask), *options.items())
            if option is not None
        ),
    )
    output = batch.attend(_by_token(query), _by_token(key), _by_token(value), call)
    return output.unsqueeze(0), None


def _by_token(heads: Tensor) -> Tensor:
    """[1, heads, tokens, head_dim] to [tokens, heads, head_dim]."""
    return heads[0].transpose(0, 1)


def _layer_of(module: nn.Module) -> int:
    index = module.layer_idx
    assert isinstance(index, int), "an attention layer without its index"
    return index


AttentionInterface.register(ATTENTION_NAME, _attention)
