"""Writes new keys and values into the pool's blocks.

A copy, or a rounding to 8 bits: one program moves a few heads of neighbouring tokens, so that a
decode batch fills the device as well as a prompt does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.kv_write import check_kv_write
from muxcluster.kernels.layout import half_rows, stored_in
from muxcluster.kernels.triton_ops.parts.rounded_kv import store_numbers
from muxcluster.kernels.triton_ops.parts.tiles import SCALE_BYTES, TABLE_STRIDES
from muxcluster.kernels.triton_ops.specimens.attention import attention_specimen, pool_block
from muxcluster.kernels.triton_ops.specimens.specimen import ALL, HOPPER, Specimen

ITEMS = 16  # Heads a program copies: two loads of 16 bytes a thread at head_dim 128


@triton.jit(do_not_specialize=["items", *TABLE_STRIDES])
def write_kernel(
    pool,
    key,
    value,
    table,
    table_rows,
    positions,
    from_right,
    items,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    table_row_stride,
    table_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """Item i is KV head i % KV_HEADS of token i // KV_HEADS. HALF: elements of half a block."""
    SLOT: tl.constexpr = HEAD_DIM + (SCALE_BYTES if pool.dtype.element_ty == tl.int8 else 0)
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
    is_item = item < items
    token = (item // KV_HEADS).to(tl.int64)
    head = item % KV_HEADS
    places = tl.arange(0, BLOCK_D)
    inside = is_item[:, None] & (places < HEAD_DIM)[None, :]
    keys_at = key + (token * key_token_stride + head * key_head_stride)[:, None]
    keys = tl.load(keys_at + places[None, :], mask=inside)
    values_at = value + (token * value_token_stride + head * value_head_stride)[:, None]
    values = tl.load(values_at + places[None, :], mask=inside)

    table_row = tl.load(table_rows + token, mask=is_item, other=0).to(tl.int64)
    position = tl.load(positions + token, mask=is_item, other=0).to(tl.int32)
    is_item = is_item & (position >= 0)
    inside = inside & (position >= 0)[:, None]
    right = tl.load(from_right + table_row, mask=is_item, other=0)
    column = table_row * table_row_stride + head * table_head_stride + position // BLOCK_TOKENS
    block = tl.load(table + column, mask=is_item, other=0).to(tl.int64)
    offset = position % BLOCK_TOKENS
    offset = tl.where(right, BLOCK_TOKENS - 1 - offset, offset)
    slots = block * (2 * HALF) + offset * SLOT
    scales_at = pool + slots + HEAD_DIM
    pool += slots[:, None] + places[None, :]
    store_numbers(pool, scales_at, keys, inside, is_item)
    store_numbers(pool + HALF, scales_at + HALF, values, inside, is_item)


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
    """As `muxcluster.kernels.kv_write.kv_write`, on the tensors' device, without waiting for it."""
    check_kv_write(key, value, table, table_rows, positions, from_right)
    tokens, kv_heads, head_dim = key.shape
    halves = half_rows(pool, stored_in(key, kv_dtype), block_tokens, head_dim)
    items = tokens * kv_heads
    if not items:
        return
    write_kernel[triton.cdiv(items, ITEMS),](
        halves,
        key,
        value,
        table,
        table_rows,
        positions,
        from_right,
        items,
        *key.stride()[:2],
        *value.stride()[:2],
        *table.stride()[:2],
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        HALF=halves.stride(0),
        BLOCK_TOKENS=block_tokens,
        ITEMS=ITEMS,
    )


def _specimen(
    dtype: str,
    head_dim: int,
    kv_heads: int,
    block: int = 16,
    capabilities: tuple[int, ...] = ALL,
    stored: str = "",
) -> Specimen:
    """A kernel for pools with `policy.block_tokens: block`. stored: as of `pool_block`."""
    strides = {f"{what}_{of}_stride" for what in ("key", "value") for of in ("token", "head")}
    half, block_tokens = pool_block(block, head_dim, stored)
    constants = {
        "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "HALF": half,
        "BLOCK_TOKENS": block_tokens,
        "ITEMS": ITEMS,
    }
    types = dict.fromkeys(("key", "value"), f"*{dtype}") | {"pool": f"*{stored or dtype}"}
    return attention_specimen(
        f"kv_write {dtype} d{head_dim} h{kv_heads} b{block} {stored}".rstrip(),
        write_kernel,
        types,
        constants,
        strides,
        capabilities,
    )


SPECIMENS: tuple[Specimen, ...] = (
    _specimen("bf16", 128, 8),
    _specimen("fp16", 64, 12),
    _specimen("bf16", 80, 32),
    _specimen("bf16", 96, 32),
    _specimen("bf16", 256, 1),
    _specimen("fp32", 128, 8),
    _specimen("bf16", 128, 8, 32, HOPPER),
    _specimen("bf16", 128, 8, 64, HOPPER),
    _specimen("bf16", 80, 32, 64, HOPPER),
    _specimen("bf16", 128, 8, stored="i8"),
    _specimen("fp16", 64, 12, stored="u8"),
    _specimen("bf16", 80, 32, stored="i8", capabilities=HOPPER),
)
