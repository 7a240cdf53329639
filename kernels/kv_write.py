"""Writes new keys and values into the pool's blocks; plain-torch twin of the Triton kernel."""

from torch import Tensor

from kernels.layout import check_heads, check_index, check_table, half_offsets, half_rows
from kernels.on_gpu import triton_kernel


def kv_write(
    pool: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    slots: Tensor,
    positions: Tensor,
    from_right: Tensor,
    block_tokens: int,
) -> None:
    """Store token i's key and value at position `positions[i]` of the sequence in `slots[i]`.

    pool: uint8 [num_blocks, block_bytes], changed in place; a block is K half then V half.
    key, value: [tokens, kv_heads, head_dim] in the pool's element type.
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view; position p is in column
        p // block_tokens.
    slots, positions: int32 or int64 [tokens]; no (slot, position) twice.
    from_right: bool [max_seqs], True where the sequence fills its blocks from the last place.

    Raises ValueError for wrong shapes, types or strides, before anything is written.
    """
    if key.is_cuda:
        triton_kernel("kv_write")(
            pool,
            key,
            value,
            table,
            slots,
            positions,
            from_right,
            block_tokens,
        )
        return
    _check(key, value, table, slots, positions, from_right)
    tokens, _, head_dim = key.shape
    halves = half_rows(pool, key.dtype, block_tokens, head_dim)
    places = halves.view(-1, block_tokens, head_dim)
    if not tokens:
        return
    slots, positions = slots.long(), positions.long()
    offsets = half_offsets(positions, from_right[slots], block_tokens).unsqueeze(1)
    rows = 2 * table[slots, :, positions // block_tokens].long()
    places.index_put_((rows, offsets), key)
    places.index_put_((rows + 1, offsets), value)


def _check(
    key: Tensor,
    value: Tensor,
    table: Tensor,
    slots: Tensor,
    positions: Tensor,
    from_right: Tensor,
) -> None:
    check_heads("key", key)
    check_heads("value", value)
    if key.shape != value.shape or key.dtype != value.dtype:
        raise ValueError(
            "key and value must agree, "
            f"got {key.dtype} {tuple(key.shape)} and {value.dtype} {tuple(value.shape)}"
        )
    check_table(table, from_right)
    if key.shape[1] != table.shape[1]:
        raise ValueError(f"key has {key.shape[1]} KV heads, table has {table.shape[1]}")
    check_index("slots", slots, key.shape[0])
    check_index("positions", positions, key.shape[0])
