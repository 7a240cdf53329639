"""A pool filled token by token, and dense attention in float64: oracles for the kernels."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tests.blocks import block_tokens


def slot_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of a key or value; of int8 with a scale in fp32 behind it."""
    return head_dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)


def stored(numbers: Tensor, kv_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Bytes in which keys or values [..., head_dim] are stored, and what they stand for (fp64)."""
    if kv_dtype is None:
        return numbers.clone(memory_format=torch.contiguous_format).view(
            torch.uint8
        ), numbers.double()
    if kv_dtype == torch.float8_e4m3fn:
        near = numbers.to(kv_dtype)
        return near.view(torch.uint8), near.double()
    scale = (numbers.double().abs().amax(-1, keepdim=True) / 127).float()
    near = (numbers.double() / scale).round().clamp(-127, 127).to(torch.int8)
    return torch.cat((near, scale.view(torch.int8)), -1).view(torch.uint8), near * scale.double()


@dataclass
class PagedCase:
    """Sequences of known keys and values, laid out in a pool whose other bytes are NaN.

    keys, values: per table row, float64 [length, kv_heads, head_dim], as stored: rounded to
    `dtype`, or to `kv_dtype` if there is one.
    """

    pool: Tensor
    table: Tensor
    from_right: Tensor
    dtype: torch.dtype
    head_dim: int
    block_tokens: int
    kv_dtype: torch.dtype | None = None
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def place(self, table_row: int, head: int, position: int, half: int) -> Tensor:
        """The pool's numbers [head_dim] of one token's key (half 0) or value (half 1)."""
        return self.slot(table_row, head, position, half).view(self.dtype)

    def slot(self, table_row: int, head: int, position: int, half: int) -> Tensor:
        """The pool's bytes of one token's key (half 0) or value (half 1), uint8."""
        column, offset = divmod(position, self.block_tokens)
        if self.from_right[table_row]:
            offset = self.block_tokens - 1 - offset
        token_bytes = slot_bytes(self.head_dim, self.kv_dtype or self.dtype)
        start = half * (self.pool.shape[1] // 2) + offset * token_bytes
        block = self.pool[int(self.table[table_row, head, column])]
        return block[start : start + token_bytes]

    def turn(self, table_row: int, num_columns: int) -> None:
        """Lay the tokens of the first columns, all full, out as the other side would."""
        for head in range(self.keys[table_row].shape[1]):
            for column in range(num_columns):
                for half in (0, 1):
                    start = column * self.block_tokens
                    places = [
                        self.slot(table_row, head, start + offset, half)
                        for offset in range(self.block_tokens)
                    ]
                    tokens = [place.clone() for place in reversed(places)]
                    for place, token in zip(places, tokens, strict=True):
                        place.copy_(token)

    def give_back(self, table_row: int, num_columns: int) -> None:
        """Fill the blocks of the first columns with NaN, as if taken anew, and forget their ids."""
        held = self.table[table_row, :, :num_columns]
        self.pool[held.flatten().long()] = 0xFF
        held.fill_(2**30)

    def attention(
        self,
        query: Tensor,
        table_row: int,
        end: int,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Dense attention of query [tokens, heads, head_dim]; its last token is at end - 1."""
        group = query.shape[1] // self.keys[table_row].shape[1]
        keys = self.keys[table_row][:end].repeat_interleave(group, 1)
        values = self.values[table_row][:end].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        distance = torch.arange(end - len(query), end)[:, None] - torch.arange(end)
        seen = distance >= 0
        if sliding_window is not None:
            seen &= distance < sliding_window
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is not None:  # one more key a head, whose value is zero
            column = sinks.double()[:, None, None].expand(-1, len(query), 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., :end]
        return torch.einsum("hqk,khd->qhd", weights, values)


def empty_case(
    lengths: list[int],
    kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    rights: list[bool] | None = None,
    kv_dtype: torch.dtype | None = None,
    block: int | None = None,
) -> PagedCase:
    """Tables for the lengths over a pool of nothing but NaN, blocks in random order.

    block: tokens of a block at head_dim 128 (`policy.block_tokens`).
    """
    half = 128 * (block or block_tokens(16)) * dtype.itemsize
    width = half // slot_bytes(head_dim, kv_dtype or dtype)
    width = width if kv_dtype == torch.int8 else width // 8 * 8
    columns = [-(-length // width) for length in lengths]
    num_blocks = sum(columns) * kv_heads + 5
    pool = torch.full((num_blocks, 2 * half), 0xFF, dtype=torch.uint8)
    # Layer 1 of 2: the kernels see a strided view. Entries not in use are no block's id.
    tables = torch.full((len(lengths), 2, kv_heads, max(columns) + 2), 2**30, dtype=torch.int32)
    ids = iter(np.random.default_rng(0).permutation(num_blocks).tolist())
    for table_row, num_columns in enumerate(columns):
        for head in range(kv_heads):
            for column in range(num_columns):
                tables[table_row, 1, head, column] = next(ids)
    from_right = torch.tensor(rights or [False] * len(lengths))
    return PagedCase(pool, tables[:, 1], from_right, dtype, head_dim, width, kv_dtype)


def filled_case(lengths: list[int], kv_heads: int, head_dim: int, **options) -> PagedCase:
    """Sequence i of lengths[i] random tokens in table row i, written by plain loops."""
    case = empty_case(lengths, kv_heads, head_dim, **options)
    rng = np.random.default_rng(1)
    for table_row, length in enumerate(lengths):
        for half, store in enumerate((case.keys, case.values)):
            numbers = torch.from_numpy(rng.standard_normal((length, kv_heads, head_dim)))
            slots, rounded = stored(numbers.to(case.dtype), case.kv_dtype)
            store.append(rounded)
            for position in range(length):
                for head in range(kv_heads):
                    case.slot(table_row, head, position, half).copy_(slots[position, head])
    return case


def random_query(tokens: int, heads: int, case: PagedCase) -> Tensor:
    """Query [tokens, heads, head_dim] in the case's type."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(tokens, heads, case.head_dim, generator=generator).to(case.dtype)


def some_sinks(heads: int, case: PagedCase) -> Tensor:
    """Sinks that take hardly any of the weights, and others that take nearly all."""
    return torch.linspace(-4, 9, heads).to(case.dtype)


# Sizes of heads, with the block that they run in.
OTHER_SIZES = ((64, 16), (64, 32), (64, 64), (80, 16), (80, 64), (128, 16), (128, 32), (128, 64))
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
