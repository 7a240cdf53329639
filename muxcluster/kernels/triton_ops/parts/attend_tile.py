"""Attention of a tile of queries to the keys of one split: the loop of prefix-shared attention."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.parts.rounded_kv import (
    load_numbers,
    scale_pointers,
    times_scales,
)
from muxcluster.kernels.triton_ops.parts.tiles import (
    loaded_places,
    scaled,
    stored_tokens,
    tile_block,
    tile_order,
    tile_pointers,
)

LOWEST = tl.constexpr(-1e30)
SMALLEST = tl.constexpr(1.1754943508222875e-38)


class Queries(NamedTuple):
    """Where queries are read: the first one, and the strides of tokens and heads."""

    first: Any
    token_stride: Any
    head_stride: Any


@triton.jit
def attend_keys(
    queries,
    positions,
    keys,
    begin,
    end,
    scale,
    soft_cap,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Attention of queries [QUERIES, BLOCK_D] to the keys begin to end of one sequence.

    positions [QUERIES] are read where IS_CAUSAL. begin: as for `tile_pointers`.
    Returns fp32 [QUERIES, BLOCK_D], not divided by the sums of exponentials, and [QUERIES] each,
    the largest scores (log 2) and those sums.
    """
    QUERIES: tl.constexpr = queries.shape[0]
    BLOCK_D: tl.constexpr = queries.shape[1]
    order = tile_order(keys.from_right, TILE, BLOCK_TOKENS)
    block = tile_block(keys, begin, end, TILE, BLOCK_TOKENS)
    # Finite, so that a query that sees none of a tile's keys makes no NaN.
    top = tl.full([QUERIES], LOWEST, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    attended = tl.zeros([QUERIES, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, TILE):
        tokens = start + order
        stored = stored_tokens(tokens, start, end, keys.from_right, TILE, BLOCK_TOKENS)
        keys_at = tile_pointers(
            keys, block, start, tokens, stored, HALF, BLOCK_TOKENS, TILE, HEAD_DIM, BLOCK_D
        )
        scales_at = scale_pointers(
            keys, block, start, tokens, stored, HALF, BLOCK_TOKENS, TILE, HEAD_DIM
        )
        block = tile_block(keys, start + TILE, end, TILE, BLOCK_TOKENS)
        loaded = loaded_places(stored, BLOCK_D, HEAD_DIM)
        products = tl.dot(
            queries, tl.trans(load_numbers(keys_at, loaded, queries)), input_precision="ieee"
        )
        products = times_scales(products, scales_at, stored)
        scores = scaled(products, scale, soft_cap, HAS_CAP)
        seen = stored[None, :]
        if IS_CAUSAL:
            seen &= tokens[None, :] <= positions[:, None]
        scores = tl.where(seen, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        kept = tl.exp2(top - new_top)
        total = total * kept + tl.sum(weights, 1)
        values = load_numbers(keys_at + HALF, loaded, queries)
        weights = times_scales(weights, scales_at + HALF, stored)
        attended = tl.dot(
            weights.to(values.dtype), values, attended * kept[:, None], input_precision="ieee"
        )
        top = new_top
    return attended, top, total


@triton.jit
def attend_tile(
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
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Attention of the work's queries, QUERIES // GROUP at most, to its keys.

    query: Queries. keys: Keys. work: Work, whose position is read where IS_CAUSAL. Where there is
    no key only the sums are written.
    """
    rows = tl.arange(0, QUERIES)
    tokens = work.token + rows // GROUP
    heads = work.kv_head * GROUP + rows % GROUP
    live = (rows < QUERIES // GROUP * GROUP) & (tokens < work.stop)
    if work.begin >= work.end:
        results = (tokens.to(tl.int64) * kv_heads * GROUP + heads) * NUM_SPLITS + work.split
        tl.store(sums + results, tl.full([QUERIES], -float("inf"), tl.float32), mask=live)
    else:
        places = tl.arange(0, BLOCK_D)
        inside = live[:, None] & (places < HEAD_DIM)[None, :]
        starts = tokens.to(tl.int64) * query.token_stride + heads * query.head_stride
        attended, top, total = attend_keys(
            tl.load(query.first + starts[:, None] + places[None, :], mask=inside, other=0.0),
            work.position + rows // GROUP,
            keys,
            work.begin,
            work.end,
            scale,
            soft_cap,
            HEAD_DIM,
            HALF,
            BLOCK_TOKENS,
            TILE,
            IS_CAUSAL,
            HAS_CAP,
        )
        # Found after the loop, so that they hold no registers in it.
        results = (tokens.to(tl.int64) * kv_heads * GROUP + heads) * NUM_SPLITS + work.split
        divisor = tl.maximum(total, SMALLEST)
        attended = attended / divisor[:, None]
        tl.store(partial + results[:, None] * HEAD_DIM + places[None, :], attended, mask=inside)
        logs = tl.where(total > 0, top + tl.log2(divisor), -float("inf"))
        tl.store(sums + results, logs, mask=live)
