"""Attention of one new token per sequence over its blocks, split over the sequence.

FlashDecoding over a head-wise block table. One program takes one KV head of one row and one span of
its context, with all query heads of the group (up to 32), so that keys and values are read once.
The group is padded to 16 for the tensor cores.
"""

# The kernel waits for memory, so the padding costs nothing.

from collections.abc import Iterator
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.attention.paged_decode import check_paged_decode
from muxcluster.kernels.layout import check_sinks, half_rows, stored_in
from muxcluster.kernels.triton_ops.parts.attend_span import attend_span
from muxcluster.kernels.triton_ops.parts.rounded_kv import readable
from muxcluster.kernels.triton_ops.parts.sinks import share_of_keys
from muxcluster.kernels.triton_ops.parts.splits import (
    SPLIT_TOKENS,
    bounds_of_split,
    choose_splits,
    merge_kernel,
    seen_span,
    span_constants,
)
from muxcluster.kernels.triton_ops.parts.tiles import (
    TABLE_STRIDES,
    Keys,
    is_in_block,
    pipeline_stages,
    score_factors,
)
from muxcluster.kernels.triton_ops.specimens.attention import attention_specimen, pool_block
from muxcluster.kernels.triton_ops.specimens.specimen import (
    ALL,
    AMPERE,
    CONVERTING,
    HOPPER,
    Specimen,
)

# Tiles of keys and values that a program waits for at a time. Two of 32 KiB in three programs fill
# the memory pipeline of a multiprocessor.
TILES_IN_FLIGHT = 2


@triton.jit(do_not_specialize=["num_splits", "max_tokens", "window", *TABLE_STRIDES])
def decode_kernel(
    output,
    sums,
    query,
    pool,
    table,
    table_rows,
    lengths,
    from_right,
    sinks,
    scale,
    soft_cap,
    num_splits,
    max_tokens,
    window,
    query_row_stride,
    query_head_stride,
    table_row_stride,
    table_head_stride,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """output [rows, heads, splits, head_dim] and, where IS_SPLIT, sums fp32 [rows, heads, splits].

    Grid: rows * splits, KV heads * parts of BLOCK_G heads of a group. Neighbouring programs are
    splits of one row, so that those a short row leaves idle run beside busy ones.
    HALF: elements of half a block. Sinks [heads] are read here or, where IS_SPLIT, by the merge.
    """
    PARTS: tl.constexpr = (GROUP + BLOCK_G - 1) // BLOCK_G
    row, split = tl.program_id(0) // num_splits, tl.program_id(0) % num_splits
    kv_head = tl.program_id(1) // PARTS
    table_row = tl.load(table_rows + row).to(tl.int64)
    end = tl.minimum(tl.load(lengths + row).to(tl.int32), max_tokens)
    first_seen, begin = seen_span(end, window, ALIGN, HAS_WINDOW)
    if IS_SPLIT:
        begin, end = bounds_of_split(split, num_splits, begin, end, TILE, MIN_TILES)
        if begin >= end:
            return
    right = tl.load(from_right + table_row)
    blocks = table + table_row * table_row_stride + kv_head * table_head_stride

    heads = tl.program_id(1) % PARTS * BLOCK_G + tl.arange(0, BLOCK_G)
    places = tl.arange(0, BLOCK_D)
    inside = (heads < GROUP)[:, None] & (places < HEAD_DIM)[None, :]
    query += row.to(tl.int64) * query_row_stride + kv_head * GROUP * query_head_stride
    queries_at = query + heads[:, None] * query_head_stride + places[None, :]
    queries = tl.load(queries_at, mask=inside, other=0.0)
    attended, log = attend_span(
        queries,
        Keys(pool, blocks, right),
        first_seen,
        begin,
        end,
        scale,
        soft_cap,
        HEAD_DIM,
        HALF,
        BLOCK_TOKENS,
        TILE,
        HAS_WINDOW and ALIGN > 1,
        HAS_CAP,
    )
    if HAS_SINKS and not IS_SPLIT:
        own = tl.load(sinks + kv_head * GROUP + heads, mask=heads < GROUP, other=0.0)
        attended *= share_of_keys(log, own)[:, None]
    first = (row.to(tl.int64) * (tl.num_programs(1) // PARTS) + kv_head) * GROUP
    results = (first + heads) * num_splits + split
    output += results[:, None] * HEAD_DIM + places[None, :]
    tl.store(output, attended.to(output.dtype.element_ty), mask=inside)
    if IS_SPLIT:
        tl.store(sums + results, log, mask=heads < GROUP)


def paged_decode(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    num_splits: int | None = None,
    split_tokens: int = SPLIT_TOKENS,
    tile_tokens: int | None = None,
) -> Tensor:
    """As `muxcluster.kernels.attention.paged_decode.paged_decode`, on the tensors' device.

    Nothing waits for the device and the grid follows from shapes alone, so the call can be
    captured in a CUDA graph. Lengths are not checked; a row sees no more than its table holds.

    num_splits: most splits of a row, by default chosen from the shapes. split_tokens: least tokens
    of a split. tile_tokens: tokens read at once, a power of two of at least 16.
    """
    check_paged_decode(query, table, table_rows, lengths, from_right, sliding_window, soft_cap)
    check_sinks(query, sinks)
    rows, heads, head_dim = query.shape
    kv_heads, max_tokens = table.shape[1], table.shape[2] * block_tokens
    if num_splits is None:
        num_splits = choose_splits(rows, kv_heads, max_tokens, query.device)
    halves = readable(half_rows(pool, stored_in(query, kv_dtype), block_tokens, head_dim))
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not output.numel():
        return output
    partial, sums = output, output
    if num_splits > 1:
        sums = query.new_empty((rows, heads, num_splits), dtype=torch.float32)
        partial = sums.new_empty((*sums.shape, head_dim))
    tile, stages = choose_tile(head_dim, query.dtype, block_tokens)
    if tile_tokens is not None:
        tile, stages = tile_tokens, pipeline_stages(block_tokens, tile_tokens, TILES_IN_FLIGHT)
    limits = (num_splits, max_tokens, sliding_window or 0)
    group = heads // kv_heads
    has = {"has_window": sliding_window is not None, "has_sinks": sinks is not None}
    shape = span_constants(head_dim, tile, split_tokens, block_tokens, **has)
    own_sinks = query if sinks is None else sinks
    decode_kernel[rows * num_splits, kv_heads * triton.cdiv(group, group_block(group))](
        partial,
        sums,
        query,
        halves,
        table,
        table_rows,
        lengths,
        from_right,
        own_sinks,
        *score_factors(scale, soft_cap),
        *limits,
        *query.stride()[:2],
        *table.stride()[:2],
        GROUP=group,
        BLOCK_G=group_block(group),
        HALF=halves.stride(0),
        BLOCK_TOKENS=block_tokens,
        HAS_CAP=soft_cap is not None,
        IS_SPLIT=num_splits > 1,
        **shape,
        num_stages=stages,
    )
    if num_splits > 1:
        ends = (lengths, own_sinks)
        merge_kernel[rows * heads,](output, partial, sums, *ends, heads, *limits, **shape)
    return output


def group_block(group: int) -> int:
    """Return the query heads of a program; more than 32 would not leave enough registers."""
    return min(32, max(16, triton.next_power_of_2(group)))


def choose_tile(head_dim: int, dtype: torch.dtype, block_tokens: int) -> tuple[int, int]:
    """Return tokens read at once, and stages of the pipeline that reads them."""
    # 16 KiB of keys, less in fp32, whose products take more registers. Half as many where that puts
    # each tile into one block: the loop then has fewer instructions a byte than with tiles of two
    # blocks, and one tile more is in flight.
    elements = 8192 if dtype.itemsize == 2 else 2048
    tile = max(16, min(128, elements // triton.next_power_of_2(head_dim)))
    half = tile // 2
    if half >= 16 and is_in_block(block_tokens, half) and not is_in_block(block_tokens, tile):
        return half, pipeline_stages(block_tokens, half, TILES_IN_FLIGHT + 1)
    return tile, pipeline_stages(block_tokens, tile, TILES_IN_FLIGHT)


def _specimens(
    dtype: str,
    head_dim: int,
    group: int,
    *,
    block: int = 16,
    is_split: bool = False,
    limited: bool = False,
    has_sinks: bool = False,
    capabilities: tuple[int, ...] = ALL,
    stored: str = "",
) -> Iterator[Specimen]:
    """Kernels of models of this shape with `policy.block_tokens: block`.

    limited: with a sliding window, and with a cap unless there are sinks. stored: as of
    `pool_block`.
    """
    exact = torch.float32 if dtype == "fp32" else torch.bfloat16
    half, block_tokens = pool_block(block, head_dim, stored)
    tile, stages = choose_tile(head_dim, exact, block_tokens)
    has = {"has_window": limited, "has_sinks": has_sinks}
    shape = span_constants(head_dim, tile, SPLIT_TOKENS, block_tokens, **has)
    constants = shape | {
        "GROUP": group,
        "BLOCK_G": group_block(group),
        "HALF": half,
        "BLOCK_TOKENS": block_tokens,
        "HAS_CAP": limited and not has_sinks,
        "IS_SPLIT": is_split,
    }
    words = f"{dtype} d{head_dim} g{group}{' split' * is_split}{' window' * limited}"
    words += f"{' sinks' if has_sinks else ' cap' * limited} b{block}"
    element = f"*{dtype}"
    types = {
        "output": "*fp32" if is_split else element,
        "sums": "*fp32" if is_split else element,
        "query": element,
        "sinks": element,
        "pool": f"*{stored or dtype}",
    }
    strides = {"query_row_stride", "query_head_stride"}
    yield attention_specimen(
        f"paged_decode {words} {stored}".rstrip(),
        decode_kernel,
        types,
        constants,
        strides,
        capabilities,
        num_stages=stages,
    )
    if is_split and block == 16 and not stored:  # other blocks change numbers in it alone
        types = {"output": element, "partial": "*fp32", "sums": "*fp32", "sinks": element}
        name = f"paged_decode merge {words}"
        yield attention_specimen(name, merge_kernel, types, shape, set(), capabilities)


SPECIMENS: tuple[Specimen, ...] = tuple(
    chain(
        _specimens("bf16", 128, 4, is_split=True),
        _specimens("bf16", 128, 1),
        _specimens("fp16", 128, 8, limited=True),
        _specimens("bf16", 64, 8, is_split=True),
        _specimens("bf16", 80, 1, is_split=True),
        _specimens("bf16", 96, 1),
        _specimens("bf16", 64, 71),
        _specimens("fp32", 128, 4),
        _specimens("bf16", 256, 2, is_split=True, limited=True),
        _specimens("bf16", 128, 4, block=32, is_split=True),
        _specimens("bf16", 128, 4, block=64, is_split=True),
        _specimens("fp16", 128, 8, block=64, limited=True, capabilities=HOPPER),
        _specimens("bf16", 64, 8, block=32, capabilities=HOPPER),
        _specimens("bf16", 64, 8, block=64, capabilities=HOPPER),
        _specimens("bf16", 80, 1, block=32, capabilities=HOPPER),
        _specimens("bf16", 80, 1, block=64, capabilities=HOPPER),
        _specimens("bf16", 256, 2, block=64, limited=True, capabilities=HOPPER),
        _specimens("fp32", 128, 4, block=64, capabilities=HOPPER),
        _specimens("bf16", 128, 4, is_split=True, stored="i8"),
        _specimens("bf16", 128, 4, is_split=True, capabilities=AMPERE, stored="u8"),
        _specimens("bf16", 128, 4, is_split=True, capabilities=CONVERTING, stored="fp8e4nv"),
        _specimens("fp16", 64, 8, limited=True, capabilities=HOPPER, stored="i8"),
        _specimens("bf16", 80, 1, capabilities=HOPPER, stored="i8"),
        _specimens("bf16", 128, 4, block=64, is_split=True, capabilities=HOPPER, stored="fp8e4nv"),
        _specimens("bf16", 256, 2, capabilities=HOPPER, stored="fp8e4nv"),
        _specimens("bf16", 64, 8, is_split=True, has_sinks=True),
        _specimens("bf16", 64, 8, is_split=True, limited=True, has_sinks=True),
        _specimens("bf16", 64, 8, limited=True, has_sinks=True),
        _specimens("bf16", 64, 8, limited=True, has_sinks=True, capabilities=HOPPER, stored="i8"),
    )
)
