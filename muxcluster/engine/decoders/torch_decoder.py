"""Decoder of Llama's kind with as few operators per layer as torch offers on the CPU.

Q, K and V are one packed product, and so are gate and up; residuals are added by the product that
precedes them. Rotary is one product of complex numbers, for which the rows of Q and K lie in pairs.
Scores do not depend on the order inside a head, so this order stays inside the decoder.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from muxcluster.engine.forward.attention import LayerAttention, LayerCall
from muxcluster.engine.forward.paged_forward import finished
from muxcluster.engine.load.packing_cpu import PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """Root mean square normalisation over the last axis (Zhang and Sennrich 2019), in fp32."""

    weight: Tensor
    eps: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the norm of `inputs` [..., size], of the same shape and type."""
        wide = inputs.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        mean = torch.addcmul(self.eps, length, length, value=1 / inputs.shape[-1])
        scaled = wide * mean.rsqrt_()
        normed: Tensor = scaled.to(inputs.dtype).mul_(self.weight)
        return normed


class Product(Protocol):
    """A linear layer, packed or quantised."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        ...

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return the product of `inputs`, and `added` to it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FusedLayer:
    """One decoder layer."""

    call: LayerCall
    heads: int
    kv_heads: int
    attention_norm: RmsNorm
    qkv: Product  # to [heads + 2 * kv_heads, head_dim], heads of Q and K in pairs
    # query_norm, key_norm: of each head, None where the model has none
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    output: Product
    mlp_norm: RmsNorm
    gate_up: Product
    down: Product

    def __call__(self, hidden: Tensor, turns: Tensor, attention: LayerAttention) -> Tensor:
        """Return the layer's output, of `hidden`'s shape.

        hidden: [tokens, hidden_size]. turns: complex64 [tokens, 1, head_dim / 2].
        """
        tokens, heads, kv_heads = len(hidden), self.heads, self.kv_heads
        projected: Tensor = self.qkv(self.attention_norm(hidden))
        projected = projected.view(tokens, heads + 2 * kv_heads, -1)
        query, key, value = torch.split(projected, [heads, kv_heads, kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query.copy_(self.query_norm(query))
            key.copy_(self.key_norm(key))
        _rotate(projected[:, : heads + kv_heads], turns)
        attended = attention.attend(query, key, value, self.call)
        hidden = self.output.plus(attended.reshape(tokens, -1), hidden)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        return self.down.plus(silu(gate).mul_(up), hidden)


def _rotate(heads: Tensor, turns: Tensor) -> None:
    """Turn pairs of [tokens, heads, head_dim] in place."""
    wide = heads.float()  # the same tensor in fp32
    torch.view_as_complex(wide.view(*wide.shape[:-1], -1, 2)).mul_(turns)
    if wide is not heads:
        heads.copy_(wide)


@dataclass(frozen=True, slots=True, eq=False)
class FusedDecoder:
    """Llama's kind of decoder on packed linears, a `TokenForward`."""

    embeddings: Tensor  # [vocab, hidden_size]
    turns: Tensor  # complex64 [positions, 1, head_dim / 2]
    layers: tuple[FusedLayer, ...]
    norm: RmsNorm
    head: PackedLinear

    @property
    def has_windows(self) -> bool:
        return any(layer.call.sliding_window is not None for layer in self.layers)

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        hidden = embedding(tokens, self.embeddings)
        turns = self.turns[positions]
        for layer in self.layers:
            hidden = layer(hidden, turns, attention)
        return finished(self.head(self.norm(hidden if wanted is None else hidden[wanted])), out)
