"""Decoder of Llama's kind on our kernels, with as few launches per layer as they allow.

Q, K and V are one product, and so are gate and up. The sum of a sublayer's output and the residual
is part of the next norm, and the norms of queries and keys are part of rotary. A layer takes ten
launches, and one more for splits of long contexts; transformers' modules take about forty.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from muxcluster.engine.forward.attention import LayerAttention, LayerCall
from muxcluster.engine.forward.paged_forward import finished
from muxcluster.kernels.add_rms_norm import add_rms_norm
from muxcluster.kernels.rotary import HeadNorms, rotary
from muxcluster.kernels.silu_mul import silu_mul

Linear = Callable[[Tensor], Tensor]  # [tokens, in_features] to [tokens, out_features]


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMSNorm of the residual stream."""

    weight: Tensor  # [hidden_size]
    eps: float  # added to the mean square

    def __call__(self, residual: Tensor, added: Tensor | None) -> Tensor:
        """Return the norm, [tokens, hidden_size], of `residual + added`, now in `residual`."""
        if added is None:
            return add_rms_norm(residual, self.weight, self.eps)
        return add_rms_norm(added, self.weight, self.eps, residual)


@dataclass(frozen=True, slots=True, eq=False)
class KernelLayer:
    """One decoder layer, or one rank's part of it."""

    call: LayerCall
    heads: int
    kv_heads: int
    input_norm: Norm
    qkv: Linear  # to [heads + 2 * kv_heads, head_dim]
    head_norms: HeadNorms | None  # of queries and keys, None where the model has none
    # output, down: may sum over ranks
    output: Linear
    mlp_norm: Norm
    gate_up: Linear  # to the gate's columns, then up's
    down: Linear

    def __call__(
        self,
        residual: Tensor,
        added: Tensor | None,
        turns: tuple[Tensor, Tensor],
        attention: LayerAttention,
    ) -> Tensor:
        """Return what is to be added to `residual` after this layer, [tokens, hidden_size].

        residual: [tokens, hidden_size], changed in place. added: what the layer before returned.
        turns: cosines and sines [tokens, head_dim], as for `rotary`.
        """
        tokens, heads, kv_heads = len(residual), self.heads, self.kv_heads
        projected = self.qkv(self.input_norm(residual, added))
        by_head = projected.view(tokens, heads + 2 * kv_heads, -1)
        query, key, value = torch.split(by_head, [heads, kv_heads, kv_heads], dim=1)
        rotary(query, key, *turns, norms=self.head_norms)
        attended = attention.attend(query, key, value, self.call)
        normed = self.mlp_norm(residual, self.output(attended.reshape(tokens, -1)))
        return self.down(silu_mul(self.gate_up(normed)))


@dataclass(frozen=True, slots=True, eq=False)
class KernelDecoder:
    """Llama's kind of decoder on our kernels, a `TokenForward`."""

    model: nn.Module  # owner of the parameters that the layers use
    embeddings: Linear  # int64 [tokens] to new [tokens, hidden_size]
    # the model's module that makes cosines and sines [1, tokens, head_dim] of positions [1, tokens]
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    layers: tuple[KernelLayer, ...]
    norm: Norm
    head: Linear

    @property
    def windows(self) -> tuple[int | None, ...]:
        return tuple(layer.call.sliding_window for layer in self.layers)

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        residual = self.embeddings(tokens)
        cosines, sines = self.rotary(residual, positions.unsqueeze(0))
        added = None
        for layer in self.layers:
            added = layer(residual, added, (cosines[0], sines[0]), attention)
        if wanted is not None and added is not None:
            residual, added = residual[wanted], added[wanted]
        return finished(self.head(self.norm(residual, added)), out)
