"""Writes new keys and values into the pool's blocks; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.layout import (
    check_heads,
    check_index,
    check_table,
    half_offsets,
    half_rows,
    slots_of,
    stored_in,
    to_slots,
)
from muxcluster.kernels.native.attention import NativeWrite, suits
from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def kv_write(
    pool: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    table_rows: Tensor,
    positions: Tensor,
    from_right: Tensor,
    block_tokens: int,
    *,
    kv_dtype: torch.dtype | None = None,
) -> None:
    """Store token i's key and value at position `positions[i]` of the sequence in `table_rows[i]`.

    pool: uint8 [num_blocks, block_bytes], changed in place; a block is K half then V half.
    key, value: [tokens, kv_heads, head_dim].
    table: int32 [max_seqs, kv_heads, max_columns], one layer's view; position p is in column
        p // block_tokens.
    table_rows, positions: int32 or int64 [tokens]; no (table row, position) twice. A token at a
        negative position is not written: rows that fill up a batch of fixed size.
    from_right: bool [max_seqs], True where the sequence fills its blocks from the last place.
    kv_dtype: type in which keys and values are stored, see `kernels.layout`; None: their own.

    Raises ValueError for wrong shapes, types or strides, before anything is written.
    """
    check_kv_write(key, value, table, table_rows, positions, from_right)
    tokens, _, head_dim = key.shape
    halves = half_rows(pool, stored_in(key, kv_dtype), block_tokens, head_dim)
    is_token = positions >= 0
    if not is_token.all():
        key, value = key[is_token], value[is_token]
        table_rows, positions = table_rows[is_token], positions[is_token]
    if tokens:
        where = (table.unsqueeze(1), table_rows, positions, from_right, block_tokens)
        write_plan(halves, *where).write(key, value, halves, 0)


def write_plan(
    halves: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    positions: Tensor,
    from_right: Tensor,
    block_tokens: int,
) -> "NativeWrite | WritePlan":
    """Return the CPU path: by the C++ kernels where they can be had.

    halves: as of `half_rows`. The rest as in `WritePlan`.
    """
    kind = NativeWrite if suits(halves, tables) else WritePlan
    return kind(tables, table_rows, positions, from_right, block_tokens)


class WritePlan:
    """Torch's CPU path: where new tokens' keys and values lie, worked out once for all layers."""

    def __init__(
        self,
        tables: Tensor,
        table_rows: Tensor,
        positions: Tensor,
        from_right: Tensor,
        block_tokens: int,
    ) -> None:
        """tables: int32 [max_seqs, layers, kv_heads, max_columns]; the rest as in `kv_write`."""
        table_rows, positions = table_rows.long(), positions.long()
        self._block_tokens = block_tokens
        self._offsets = half_offsets(positions, from_right[table_rows], block_tokens).unsqueeze(1)
        # [tokens, layers, kv_heads] to [layers, tokens, kv_heads]
        blocks = tables[table_rows, :, :, positions // block_tokens].transpose(0, 1).long()
        self._keys = 2 * blocks
        self._values = self._keys + 1

    def write(self, key: Tensor, value: Tensor, halves: Tensor, layer: int) -> None:
        """Store the tokens' K and V of one layer. halves: as of `half_rows`, changed in place."""
        places = slots_of(halves, self._block_tokens)
        places.index_put_((self._keys[layer], self._offsets), to_slots(key, halves))
        places.index_put_((self._values[layer], self._offsets), to_slots(value, halves))


def check_kv_write(
    key: Tensor,
    value: Tensor,
    table: Tensor,
    table_rows: Tensor,
    positions: Tensor,
    from_right: Tensor,
) -> None:
    """Raise ValueError unless the arguments are as `kv_write` says."""
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
    check_index("table_rows", table_rows, key.shape[0])
    check_index("positions", positions, key.shape[0])
