"""Kernels of prefix-shared attention: partial attention of every tile and split, and its merge."""

import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.parts.attend_tile import LOWEST, SMALLEST, Queries, attend_tile
from muxcluster.kernels.triton_ops.parts.prefix_work import program_work
from muxcluster.kernels.triton_ops.parts.sinks import share_of_keys
from muxcluster.kernels.triton_ops.parts.tiles import TABLE_STRIDES, Keys

COUNTS = ("rows", "groups", "kv_heads", "prefix_tiles", "distinct_tiles", "max_tokens")


@triton.jit
def attend_work(
    partial,
    sums,
    query,
    keys,
    work,
    kv_heads,
    scale,
    soft_cap,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    PREFIX_QUERIES: tl.constexpr,
    DISTINCT_QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    IS_SINGLE: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """`attend_tile` with the number of queries that the work's kind of tile has."""
    # Tiles of one size are attended to by the same code: the condition is then constant.
    if work.is_prefix | (PREFIX_QUERIES == DISTINCT_QUERIES):
        attend_tile(
            partial,
            sums,
            query,
            keys,
            work,
            kv_heads,
            scale,
            soft_cap,
            GROUP,
            HEAD_DIM,
            BLOCK_D,
            HALF,
            BLOCK_TOKENS,
            PREFIX_QUERIES,
            TILE,
            NUM_SPLITS,
            (PREFIX_QUERIES == DISTINCT_QUERIES) and not IS_SINGLE,
            HAS_CAP,
        )
    else:
        attend_tile(
            partial,
            sums,
            query,
            keys,
            work,
            kv_heads,
            scale,
            soft_cap,
            GROUP,
            HEAD_DIM,
            BLOCK_D,
            HALF,
            BLOCK_TOKENS,
            DISTINCT_QUERIES,
            TILE,
            NUM_SPLITS,
            not IS_SINGLE,
            HAS_CAP,
        )


@triton.jit(do_not_specialize=[*COUNTS, *TABLE_STRIDES])
def prefix_kernel(
    partial,
    sums,
    query,
    pool,
    table,
    table_rows,
    lengths,
    from_right,
    group_offsets,
    prefix_lengths,
    query_offsets,
    scale,
    soft_cap,
    rows,
    groups,
    kv_heads,
    prefix_tiles,
    distinct_tiles,
    max_tokens,
    query_token_stride,
    query_head_stride,
    table_row_stride,
    table_head_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PREFIX_QUERIES: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
    DISTINCT_QUERIES: tl.constexpr,
    DISTINCT_SPLITS: tl.constexpr,
    IS_SINGLE: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """partial fp32 [tokens, heads, splits, head_dim] and sums fp32 [tokens, heads, splits]: first
    the splits of the prefix, then those of the distinct keys.

    Grid: (prefix_tiles * PREFIX_SPLITS + distinct_tiles * DISTINCT_SPLITS) * kv_heads.
    IS_SINGLE: one query a row; query_offsets is not read. HALF: elements of half a block.
    """
    work = program_work(
        table_rows,
        lengths,
        group_offsets,
        prefix_lengths,
        query_offsets,
        rows,
        groups,
        kv_heads,
        prefix_tiles,
        distinct_tiles,
        max_tokens,
        GROUP,
        TILE,
        MIN_TILES,
        PREFIX_QUERIES,
        PREFIX_SPLITS,
        DISTINCT_QUERIES,
        DISTINCT_SPLITS,
        IS_SINGLE,
    )
    blocks = table + work.table_row * table_row_stride + work.kv_head * table_head_stride
    attend_work(
        partial,
        sums,
        Queries(query, query_token_stride, query_head_stride),
        # The blocks of a prefix are full: the order of their tokens does not matter.
        Keys(pool, blocks, tl.load(from_right + work.table_row)),
        work,
        kv_heads,
        scale,
        soft_cap,
        GROUP,
        HEAD_DIM,
        BLOCK_D,
        HALF,
        BLOCK_TOKENS,
        PREFIX_QUERIES,
        DISTINCT_QUERIES,
        TILE,
        PREFIX_SPLITS + DISTINCT_SPLITS,
        IS_SINGLE,
        HAS_CAP,
    )


@triton.jit(do_not_specialize=["items", "heads"])
def merge_kernel(
    output,
    partial,
    sums,
    sinks,
    items,
    heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ITEMS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """output [items, head_dim] from partial fp32 [items, splits, head_dim] and sums fp32 [items,
    splits]; an item is one head of one query. Partials whose sum is -inf were never written. Sinks
    [heads] are read where HAS_SINKS: here, so that each counts once however many splits there are.
    """
    item = tl.program_id(0).to(tl.int64) * ITEMS + tl.arange(0, ITEMS)
    inside = item < items
    split = tl.arange(0, BLOCK_S)
    used = inside[:, None] & (split < NUM_SPLITS)[None, :]
    logs = sums + item[:, None] * NUM_SPLITS + split[None, :]
    logs = tl.load(logs, mask=used, other=-float("inf"))
    top = tl.maximum(tl.max(logs, 1), LOWEST)
    total = tl.sum(tl.exp2(logs - top[:, None]), 1)
    places = tl.arange(0, BLOCK_D)
    merged = tl.zeros([ITEMS, BLOCK_D], tl.float32)
    for index in tl.static_range(NUM_SPLITS):
        log = tl.load(sums + item * NUM_SPLITS + index, mask=inside, other=-float("inf"))
        weight = tl.exp2(log - top)
        written = (weight > 0)[:, None] & (places < HEAD_DIM)[None, :]
        values = partial + (item * NUM_SPLITS + index)[:, None] * HEAD_DIM + places[None, :]
        merged += weight[:, None] * tl.load(values, mask=written, other=0.0)
    total = tl.maximum(total, SMALLEST)
    merged = merged / total[:, None]
    if HAS_SINKS:
        own = tl.load(sinks + item % heads, mask=inside, other=0.0)
        merged *= share_of_keys(top + tl.log2(total), own)[:, None]
    result = output + item[:, None] * HEAD_DIM + places[None, :]
    shown = inside[:, None] & (places < HEAD_DIM)[None, :]
    tl.store(result, merged.to(output.dtype.element_ty), mask=shown)
