"""Random sequences in a paged pool, as the attention kernels take them, and read back densely."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention: query heads, KV heads, and the width of each."""

    query: int
    kv: int
    dim: int

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} heads of {self.dim}"


@dataclass(frozen=True, slots=True)
class Paged:
    """Sequences in a paged pool."""

    pool: Tensor  # uint8 [num_blocks, block_bytes]
    table: Tensor  # int32 [max_seqs, kv_heads, max_columns]
    from_right: Tensor  # bool [max_seqs]
    # table_rows, lengths: int32 [rows]; row i is row i of the table
    table_rows: Tensor
    lengths: Tensor
    block_tokens: int
    heads: Heads
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """K and V of one token of the layer."""
        return 2 * self.heads.kv * self.heads.dim * self.dtype.itemsize

    def places(self) -> Tensor:
        """View [num_blocks, 2, block_tokens, head_dim] of the pool: K halves and V halves."""
        used = self.block_tokens * self.heads.dim
        halves = self.pool.view(self.dtype).unflatten(1, (2, -1))[:, :, :used]
        return halves.unflatten(2, (self.block_tokens, self.heads.dim))

    def dense(self, row: int) -> Tensor:
        """Keys and values [2, kv_heads, length, head_dim] of a row, in order of position."""
        positions = torch.arange(int(self.lengths[row]), device=self.pool.device)
        columns, offsets = positions // self.block_tokens, positions % self.block_tokens
        if bool(self.from_right[row]):
            offsets = self.block_tokens - 1 - offsets
        blocks = self.table[row].long()[:, columns]
        return self.places()[blocks, :, offsets].permute(2, 0, 1, 3)

    def query(self, tokens: int) -> Tensor:
        """Random [tokens, query heads, head_dim]."""
        shape = (tokens, self.heads.query, self.heads.dim)
        return torch.randn(shape, device=self.pool.device).to(self.dtype)


def block_tokens_of(head_dim: int) -> int:
    """Tokens of a block of 16-bit elements whose size is that of 16 tokens at head_dim 128."""
    return 16 * 128 // head_dim // 8 * 8


def paged(
    lengths: list[int],
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    *,
    shared_tokens: int = 0,
    mixed_sides: bool = False,
) -> Paged:
    """One sequence a row, blocks in random order; the pool is random, but NaN past each end.

    shared_tokens: the first so many tokens (a multiple of the block) of all rows are in the same
    blocks. mixed_sides: every second row fills its blocks from the right.
    """
    block_tokens = block_tokens_of(heads.dim)
    shared = shared_tokens // block_tokens
    widths = [max(0, -(-length // block_tokens) - shared) for length in lengths]
    num_blocks = (sum(widths) + shared) * heads.kv + 1
    half = 16 * 128
    pool = torch.empty(num_blocks, 2 * half, dtype=dtype, device=device)
    pool.normal_()
    ids = torch.randperm(num_blocks, device=device).to(torch.int32)
    table = torch.full((len(lengths), heads.kv, shared + max(widths)), 2**30, dtype=torch.int32)
    table = table.to(device)
    table[:, :, :shared] = ids[: shared * heads.kv].view(heads.kv, shared)
    start = shared * heads.kv
    for row, width in enumerate(widths):
        own = ids[start : start + width * heads.kv].view(heads.kv, width)
        table[row, :, shared : shared + width] = own
        start += width * heads.kv
    from_right = torch.zeros(len(lengths), dtype=torch.bool, device=device)
    from_right[1::2] = mixed_sides
    made = Paged(
        pool.view(torch.uint8),
        table,
        from_right,
        torch.arange(len(lengths), dtype=torch.int32, device=device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tokens,
        heads,
        dtype,
    )
    _poison_ends(made, lengths)
    return made


def _poison_ends(made: Paged, lengths: list[int]) -> None:
    """NaN in the slots of every row's last block that hold none of its tokens."""
    places = made.places()
    for row, length in enumerate(lengths):
        used = length % made.block_tokens
        if used:
            blocks = made.table[row, :, length // made.block_tokens].long()
            unused = slice(used, None)
            if bool(made.from_right[row]):
                unused = slice(0, made.block_tokens - used)
            places[blocks, :, unused] = torch.nan
