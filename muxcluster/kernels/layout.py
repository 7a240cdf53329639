"""Layout of tokens' keys and values in the pool, and argument checks that all kernels share."""

import torch
from torch import Tensor


def half_rows(pool: Tensor, dtype: torch.dtype, block_tokens: int, head_dim: int) -> Tensor:
    """Return a view of the pool as [2 * num_blocks, block_tokens * head_dim] of `dtype`.

    Row 2b is the K half of block b, row 2b + 1 its V half; bytes that do not make a whole token
    (head_dim 80) are left out. `pool` is uint8 [num_blocks, block_bytes], contiguous.

    Raises ValueError if the pool has another shape, type or layout, or its halves are too small for
    `block_tokens` tokens.
    """
    if pool.dtype != torch.uint8 or pool.dim() != 2 or not pool.is_contiguous():
        raise ValueError(
            "pool must be a contiguous uint8 [num_blocks, block_bytes], "
            f"got {pool.dtype} {tuple(pool.shape)} with strides {pool.stride()}"
        )
    num_blocks, block_bytes = pool.shape
    needed = block_tokens * head_dim
    half, rest = divmod(block_bytes, 2 * dtype.itemsize)
    if block_tokens < 1 or rest or half < needed:
        raise ValueError(
            f"a block of {block_bytes} bytes cannot hold K and V of {block_tokens} tokens "
            f"of head_dim {head_dim} in {dtype}"
        )
    return pool.view(dtype).view(2 * num_blocks, half)[:, :needed]


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
