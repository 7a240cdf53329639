"""One decode step of a small random Llama made of our kernels, for graph capture."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu.kernel_cases.paged import Heads, Paged, paged
from muxcluster.kernels.add_rms_norm import add_rms_norm
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.kv_write import kv_write
from muxcluster.kernels.rotary import rotary
from muxcluster.kernels.silu_mul import silu_mul

ROWS = 16
LENGTH = 500
HEADS = Heads(16, 8, 64)
HIDDEN = 1024
INNER = 2816
VOCAB = 32_000
LAYERS = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights and cache of one layer."""

    norms: Tensor  # [2, HIDDEN]
    # qkv, out, gate_up, down: weights [in, out]
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    cache: Paged  # its own pool


class SmallDecode:
    """16 rows of 500 tokens; the same step again and again, on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._layers = [self._layer() for _ in range(LAYERS)]
        self._embedding = self._weight(VOCAB, HIDDEN, 1.0)
        self._head = self._weight(HIDDEN, VOCAB, HIDDEN**-0.5)
        self._norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device=device)
        self.tokens = torch.arange(ROWS, device=device)
        angles = torch.rand(ROWS, HEADS.dim, device=device)
        self._cos, self._sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def step(self) -> Tensor:
        """Logits [ROWS, VOCAB] of `tokens`, each at the last position of its row."""
        residual = self._embedding[self.tokens]
        hidden = torch.zeros_like(residual)
        for layer in self._layers:
            hidden = add_rms_norm(hidden, layer.norms[0], 1e-5, residual)
            hidden = self._attention(layer, hidden @ layer.qkv) @ layer.out
            hidden = add_rms_norm(hidden, layer.norms[1], 1e-5, residual)
            hidden = silu_mul(hidden @ layer.gate_up) @ layer.down
        return add_rms_norm(hidden, self._norm, 1e-5, residual) @ self._head

    def _attention(self, layer: Layer, projected: Tensor) -> Tensor:
        cache, kv = layer.cache, HEADS.kv
        heads = projected.view(ROWS, -1, HEADS.dim)
        query, key, value = heads.split((HEADS.query, kv, kv), dim=1)
        rotary(query, key, self._cos, self._sin)
        kv_write(
            cache.pool,
            key,
            value,
            cache.table,
            cache.table_rows,
            cache.lengths - 1,
            cache.from_right,
            cache.block_tokens,
        )
        where = (cache.pool, cache.table, cache.table_rows, cache.lengths, cache.from_right)
        attended = paged_decode(
            query, *where, block_tokens=cache.block_tokens, scale=HEADS.dim**-0.5
        )
        return attended.view(ROWS, -1)

    def _layer(self) -> Layer:
        width = (HEADS.query + 2 * HEADS.kv) * HEADS.dim
        scale = HIDDEN**-0.5
        return Layer(
            norms=torch.ones(2, HIDDEN, dtype=torch.bfloat16, device=self._device),
            qkv=self._weight(HIDDEN, width, scale),
            out=self._weight(HEADS.query * HEADS.dim, HIDDEN, scale),
            gate_up=self._weight(HIDDEN, 2 * INNER, scale),
            down=self._weight(INNER, HIDDEN, INNER**-0.5),
            cache=paged([LENGTH] * ROWS, HEADS, torch.bfloat16, self._device),
        )

    def _weight(self, rows: int, columns: int, scale: float) -> Tensor:
        return (scale * torch.randn(rows, columns, device=self._device)).bfloat16()
