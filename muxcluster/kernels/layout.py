"""Layout of tokens' keys and values in the pool, and argument checks that all kernels share.

Keys and values are stored in the model's dtype, or rounded to 8 bits (`kv_dtype`): to int8, each
key and value of a token and KV head with a scale of its own, its largest element / 127, as an fp32
behind its elements; or to FP8 (e4m3) without a scale. What is stored of a token depends on that
token alone, and lies in its own slot, so whatever moves slots need not know of it.
"""

import torch
from torch import Tensor

SCALE_BYTES = 4  # of an int8 key or value
INT8_MOST = 127
FP8_MOST = 448.0
# A key or value whose largest element is less is rounded as if that were it: the factor to 127
# would overflow.
LEAST_SCALED = 1e-30

# Types of rounded keys and values, and of the elements of a view of them. Few operators take e4m3:
# it is handled as bytes.
_STORED = {torch.int8: torch.int8, torch.float8_e4m3fn: torch.uint8}


def slot_bytes(kv_dtype: torch.dtype, head_dim: int) -> int:
    """Return the bytes of one token and head's key, or value."""
    scale_bytes = SCALE_BYTES if kv_dtype == torch.int8 else 0
    return head_dim * kv_dtype.itemsize + scale_bytes


def half_rows(pool: Tensor, kv_dtype: torch.dtype, block_tokens: int, head_dim: int) -> Tensor:
    """Return a view of the pool as [2 * num_blocks, block_tokens * elements of a slot].

    Row 2b is the K half of block b, row 2b + 1 its V half; bytes that do not make a whole token
    (head_dim 80) are left out. `pool` is uint8 [num_blocks, block_bytes], contiguous. The view is
    of `kv_dtype`, head_dim elements a slot; of int8 the bytes of the scale follow them, and e4m3 is
    seen as uint8.

    Raises ValueError if the pool has another shape, type or layout, its halves are too small for
    `block_tokens` tokens, or scales would not lie at multiples of their size.
    """
    if pool.dtype != torch.uint8 or pool.dim() != 2 or not pool.is_contiguous():
        raise ValueError(
            "pool must be a contiguous uint8 [num_blocks, block_bytes], "
            f"got {pool.dtype} {tuple(pool.shape)} with strides {pool.stride()}"
        )
    num_blocks, block_bytes = pool.shape
    itemsize = kv_dtype.itemsize
    needed = block_tokens * slot_bytes(kv_dtype, head_dim) // itemsize
    half, rest = divmod(block_bytes, 2 * itemsize)
    if block_tokens < 1 or rest or half < needed:
        raise ValueError(
            f"a block of {block_bytes} bytes cannot hold K and V of {block_tokens} tokens "
            f"of head_dim {head_dim} in {kv_dtype}"
        )
    if kv_dtype == torch.int8 and (head_dim % SCALE_BYTES or half % SCALE_BYTES):
        raise ValueError(
            f"int8 needs a head_dim and a half block of multiples of {SCALE_BYTES}, "
            f"got {head_dim} and {half}"
        )
    return pool.view(_STORED.get(kv_dtype, kv_dtype)).view(2 * num_blocks, half)[:, :needed]


def stored_in(query: Tensor, kv_dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of stored keys and values, None: the query's.

    Raises ValueError for one that is neither the query's nor of 8 bits.
    """
    if kv_dtype is None or kv_dtype == query.dtype:
        return query.dtype
    if kv_dtype not in _STORED:
        raise ValueError(f"kv_dtype must be int8, float8_e4m3fn or {query.dtype}, got {kv_dtype}")
    return kv_dtype


def slots_of(halves: Tensor, block_tokens: int) -> Tensor:
    """Return the view from `half_rows` by token: [2 * num_blocks, block_tokens, slot elements]."""
    elements = halves.shape[1] // block_tokens
    return halves.view(len(halves), block_tokens, elements)


def to_slots(numbers: Tensor, halves: Tensor) -> Tensor:
    """Return keys or values [..., head_dim] as `halves` stores them, [..., slot elements]."""
    if halves.dtype == torch.int8:
        return _to_int8(numbers)
    if halves.dtype == torch.uint8:
        # torch makes NaN of what is beyond the largest number
        cut = numbers.float().clamp(-FP8_MOST, FP8_MOST)
        cut = torch.where(numbers.isfinite(), cut, torch.nan)
        return cut.to(torch.float8_e4m3fn).view(torch.uint8)
    return numbers


def read_halves(halves: Tensor, ids: Tensor, head_dim: int) -> Tensor:
    """Return the tokens of the halves `ids`, [len(ids) * block_tokens, head_dim], as they lie.

    halves: as from `half_rows`. In its type; fp32 where that is of 8 bits.
    """
    rows = halves.index_select(0, ids)
    if halves.dtype == torch.int8:
        slots = rows.view(-1, head_dim + SCALE_BYTES)
        scales = slots.view(torch.float32)[:, head_dim // SCALE_BYTES :]
        return slots[:, :head_dim].float().mul_(scales)
    tokens = rows.view(-1, head_dim)
    return tokens.view(torch.float8_e4m3fn).float() if halves.dtype == torch.uint8 else tokens


def _to_int8(numbers: Tensor) -> Tensor:
    """Return int8 [..., head_dim + 4]: elements, then the bytes of the scale.

    Where an element is infinite or NaN, the scale is not finite either.
    """
    wide = numbers.float()
    largest = wide.abs().amax(-1, keepdim=True)
    elements = wide * (INT8_MOST / largest.clamp(min=LEAST_SCALED))
    elements = elements.add_(0.5).floor_().to(torch.int8)
    return torch.cat((elements, (largest / INT8_MOST).view(torch.int8)), dim=-1)


def half_offsets(positions: Tensor, from_right: Tensor, block_tokens: int) -> Tensor:
    """Return token places inside a block, int64 as `positions`; sides fill from opposite ends."""
    offsets = positions % block_tokens
    return torch.where(from_right, block_tokens - 1 - offsets, offsets)


def token_positions(columns: Tensor, from_right: Tensor, block_tokens: int) -> Tensor:
    """Return positions [rows, columns * block_tokens] of the tokens in gathered columns.

    columns: int64 [rows, columns]. from_right: bool [rows, 1].
    """
    places = torch.arange(block_tokens, device=columns.device)
    offsets = half_offsets(places, from_right, block_tokens)
    return (columns.unsqueeze(2) * block_tokens + offsets.unsqueeze(1)).flatten(1)


def check_heads(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless `tensor` is floating [tokens, heads, head_dim], heads contiguous."""
    if tensor.dim() != 3 or not tensor.is_floating_point() or tensor.stride(-1) != 1:
        raise ValueError(
            f"{name} must be floating [tokens, heads, head_dim] with head_dim contiguous, "
            f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        )


def check_index(name: str, tensor: Tensor, length: int) -> None:
    """Raise ValueError unless `tensor` is int32 or int64 [length]."""
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.shape != (length,):
        raise ValueError(
            f"{name} must be int32 or int64 [{length}], got {tensor.dtype} {tuple(tensor.shape)}"
        )


def check_table(table: Tensor, from_right: Tensor) -> None:
    """Raise ValueError unless table and sides fit.

    table: int32 [max_seqs, kv_heads, max_columns]. from_right: bool [max_seqs].
    """
    if table.dtype != torch.int32 or table.dim() != 3 or table.stride(-1) != 1:
        raise ValueError(
            "table must be int32 [max_seqs, kv_heads, max_columns] with columns contiguous, "
            f"got {table.dtype} {tuple(table.shape)} with strides {table.stride()}"
        )
    if from_right.dtype != torch.bool or from_right.shape != table.shape[:1]:
        raise ValueError(
            f"from_right must be bool [{table.shape[0]}], "
            f"got {from_right.dtype} {tuple(from_right.shape)}"
        )


def check_attention(
    query: Tensor, table: Tensor, sliding_window: int | None, soft_cap: float | None
) -> None:
    """Raise ValueError unless query and options are as decode and prefill take them."""
    check_heads("query", query)
    if query.shape[1] % table.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads are no multiple of the table's {table.shape[1]} KV heads"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, got {sliding_window}")
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"soft_cap must be positive, got {soft_cap}")


def check_sinks(query: Tensor, sinks: Tensor | None) -> None:
    """Raise ValueError unless `sinks` are None or floating [heads], contiguous, beside the query.

    query: [tokens, heads, head_dim].
    """
    if sinks is None:
        return
    is_one_a_head = sinks.is_floating_point() and sinks.shape == query.shape[1:2]
    if not is_one_a_head or not sinks.is_contiguous() or sinks.device != query.device:
        raise ValueError(
            f"sinks must be contiguous floating [{query.shape[1]}] on {query.device}, "
            f"got {sinks.dtype} {tuple(sinks.shape)} on {sinks.device}"
        )
