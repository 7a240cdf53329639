"""Decoder of Llama's kind with as few operators per layer as torch offers on the CPU.

Where all of it has C++ kernels, a step of one token a row is one call. Otherwise Q, K and V are one
packed product, and so are gate and up; residuals are added by the product that precedes them. Our
C++ products norm and gate their rows themselves. Rotary is one product of complex numbers, for
which the rows of Q and K lie in pairs. Scores do not depend on the order inside a head, so this
order stays inside the decoder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from muxcluster.engine.forward.attention import LayerAttention, LayerCall
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.paged_forward import finished
from muxcluster.engine.quantised.panel_linear import can_fuse
from muxcluster.kernels.native.attention import can_turn, turn
from muxcluster.kernels.native.step import StepRows


@dataclass(frozen=True, slots=True, eq=False)
class RmsNorm:
    """Root mean square normalisation over the last axis (Zhang and Sennrich 2019), in fp32."""

    weight: Tensor
    eps: Tensor
    eps_number: float

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


class Step(Protocol):
    """Steps in one call."""

    def logits(
        self, tokens: Tensor, rows: StepRows, wanted: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Do what `DecoderStep.logits` does."""
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
        projected = _of_normed(self.qkv, hidden, self.attention_norm)
        projected = projected.view(tokens, heads + 2 * kv_heads, -1)
        query, key, value = torch.split(projected, [heads, kv_heads, kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            query.copy_(self.query_norm(query))
            key.copy_(self.key_norm(key))
        _rotate(projected[:, : heads + kv_heads], turns)
        attended = attention.attend(query, key, value, self.call)
        hidden = self.output.plus(attended.reshape(tokens, -1), hidden)
        gate_up = _of_normed(self.gate_up, hidden, self.mlp_norm)
        if can_fuse(self.down, gate_up):
            return self.down.of_gated_plus(gate_up, hidden)
        gate, up = gate_up.chunk(2, dim=-1)
        return self.down.plus(silu(gate).mul_(up), hidden)


def _of_normed(product: Product, hidden: Tensor, norm: RmsNorm) -> Tensor:
    if can_fuse(product, hidden):
        return product.of_normed(hidden, norm.weight, norm.eps_number)
    return product(norm(hidden))


def _rotate(heads: Tensor, turns: Tensor) -> None:
    """Turn pairs of [tokens, heads, head_dim] in place."""
    if heads.dtype == torch.float32 and can_turn():
        turn(heads, turns)
        return
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
    head: Callable[[Tensor], Tensor]  # [tokens, hidden_size] to [tokens, vocab]
    step: Step | None = None  # of `PlannedAttention.step_rows`; None: all go layer by layer

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
        if self.step is not None and isinstance(attention, PlannedAttention):
            rows = attention.step_rows(self.embeddings.dtype, 2 * self.turns.shape[-1])
            if rows is not None:
                asked = torch.arange(len(tokens)) if wanted is None else wanted
                return self.step.logits(tokens, rows, asked, out)
        hidden = embedding(tokens, self.embeddings)
        turns = self.turns[positions]
        for layer in self.layers:
            hidden = layer(hidden, turns, attention)
        return finished(self.head(self.norm(hidden if wanted is None else hidden[wanted])), out)
