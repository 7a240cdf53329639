"""Rows of new tokens behind random keys and values, for the native step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.forward.batch import token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.kernels.kv_write import WritePlan
from muxcluster.kernels.layout import half_rows, slot_bytes
from tests.engine.forward.test_batch import CPU, arrays

BLOCK_TOKENS, COLUMNS = 8, 6
LENGTHS = [17, 1, 40, 8, 9, 33, 2, 48, 25, 16, 7, 3, 31, 5, 12, 44, 20, 1, 38, 15]


class Rows:
    """Sequences whose last tokens are yet to be computed; what is before is random, in blocks."""

    def __init__(
        self,
        decoder: FusedDecoder,
        num_rows: int,
        kv_dtype: torch.dtype | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """counts: of new tokens of the first rows, at most all that a row has; others have one."""
        generator = torch.Generator().manual_seed(0)
        dtype, kv_heads = decoder.embeddings.dtype, decoder.layers[0].kv_heads
        head_dim, stored = 2 * decoder.turns.shape[-1], kv_dtype or dtype
        num_layers = len(decoder.layers)
        shape = (len(LENGTHS), num_layers, kv_heads, COLUMNS)
        num_blocks = torch.Size(shape).numel()
        block_bytes = 2 * BLOCK_TOKENS * slot_bytes(stored, head_dim)
        self.pool = torch.zeros((num_blocks, block_bytes), dtype=torch.uint8)
        order = torch.randperm(num_blocks, generator=generator)
        self.arena = ModelArena(
            tables=order.view(shape).to(torch.int32),
            history=torch.empty(0, dtype=torch.int32),
            from_right=torch.arange(len(LENGTHS)) % 3 == 1,
            block_tokens=BLOCK_TOKENS,
            kv_dtype=kv_dtype,
        )
        halves = half_rows(self.pool, stored, BLOCK_TOKENS, head_dim)
        positions = torch.arange(BLOCK_TOKENS * COLUMNS).repeat(len(LENGTHS))
        sequences = torch.arange(len(LENGTHS)).repeat_interleave(BLOCK_TOKENS * COLUMNS)
        where = (self.arena.tables, sequences, positions, self.arena.from_right, BLOCK_TOKENS)
        for layer in range(num_layers):
            numbers = torch.randn((2, len(positions), kv_heads, head_dim), generator=generator)
            WritePlan(*where).write(*numbers.to(dtype), halves, layer)
        order = torch.randperm(len(LENGTHS), generator=generator)[:num_rows]
        wanted = [*counts, *([1] * (num_rows - len(counts)))]
        new = [
            (row, min(count, LENGTHS[row]))
            for row, count in zip(order.tolist(), wanted, strict=True)
        ]
        self.rows = [(row, LENGTHS[row] - count, count) for row, count in new]
        num_tokens, vocab = sum(count for _, count in new), len(decoder.embeddings)
        self.tokens = torch.randint(0, vocab, (num_tokens,), generator=generator)

    def run(self, forward: TokenForward, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits, and the pool afterwards."""
        pool = self.pool.clone()
        batch = token_batch(*arrays(self.rows), CPU)
        attention = PlannedAttention(pool, self.arena, batch)
        return forward.logits(self.tokens, batch.positions, attention, wanted), pool
