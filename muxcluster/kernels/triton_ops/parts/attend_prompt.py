"""Attention of a tile of queries to all keys they see: the loop of paged prefill."""

import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.parts.rounded_kv import (
    load_numbers,
    scale_pointers,
    times_scales,
)
from muxcluster.kernels.triton_ops.parts.tiles import (
    capped,
    loaded_places,
    tile_block,
    tile_order,
    tile_pointers,
)

# Stands for a query's largest score before it saw a key: finite, so that differences are.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def range_of_phase(
    phase: tl.constexpr, low, high, window, TILE: tl.constexpr, HAS_WINDOW: tl.constexpr
):
    """First token of the first tile of keys, a multiple of TILE, and an end to where tiles begin.

    Phase 0: keys that the last queries no longer see. 1: keys that all queries see. 2: keys that
    the first queries do not see yet. low, high: positions of the first query and past the last.
    """
    begin = 0
    inner = 0
    if HAS_WINDOW:
        begin = tl.maximum(low + 1 - window, 0) // TILE * TILE
        inner = begin + tl.cdiv(tl.maximum(high - window - begin, 0), TILE) * TILE
    if phase == 0:
        return begin, inner
    else:
        diagonal = inner + tl.maximum(tl.minimum(low + 1, high) - inner, 0) // TILE * TILE
        if phase == 1:
            return inner, diagonal
        else:
            return diagonal, high


@triton.jit
def attend_prompt(
    queries,
    positions,
    low,
    high,
    keys,
    scale,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Causal attention of queries [BLOCK_M, BLOCK_D] at `positions` to one sequence's keys.

    positions: below `high`. low, high: as in `range_of_phase`; keys at `high` and beyond are not
    read. keys: Keys. scale: positive where there is no cap. Returns fp32 [BLOCK_M, BLOCK_D], not
    divided by the sums of exponentials, and [BLOCK_M] each, the largest scores (log 2) and those
    sums.
    """
    # The factor is applied beside the subtraction of the maximum, in one instruction.
    factor = soft_cap if HAS_CAP else scale
    BLOCK_M: tl.constexpr = queries.shape[0]
    BLOCK_D: tl.constexpr = queries.shape[1]
    order = tile_order(keys.from_right, TILE, BLOCK_TOKENS)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    attended = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for phase in tl.static_range(0 if HAS_WINDOW else 1, 3):
        first, stop = range_of_phase(phase, low, high, window, TILE, HAS_WINDOW)
        block = tile_block(keys, first, stop, TILE, BLOCK_TOKENS)
        for start in tl.range(first, stop, TILE):
            tokens = start + order
            # Where nothing is hidden the mask is a constant, which the compiler drops.
            present = tl.full([TILE], True, tl.int1)
            if phase != 1:
                present = tokens < high
            read = tokens
            if phase == 0 and BLOCK_TOKENS % TILE > 0:
                # The first tile may begin in a block that was given back and holds anything, NaN
                # too: the first key that is seen is read instead.
                read = tl.maximum(tokens, low + 1 - window)
            keys_at = tile_pointers(
                keys, block, start, read, present, HALF, BLOCK_TOKENS, TILE, HEAD_DIM, BLOCK_D
            )
            scales_at = scale_pointers(
                keys, block, start, read, present, HALF, BLOCK_TOKENS, TILE, HEAD_DIM
            )
            block = tile_block(keys, start + TILE, stop, TILE, BLOCK_TOKENS)
            loaded = loaded_places(present, BLOCK_D, HEAD_DIM)
            products = tl.dot(
                queries, tl.trans(load_numbers(keys_at, loaded, queries)), input_precision="ieee"
            )
            products = times_scales(products, scales_at, present)
            scores = capped(products, scale, HAS_CAP)
            if phase != 1:
                seen = tokens[None, :] <= positions[:, None]
                if HAS_WINDOW:
                    seen &= tokens[None, :] > positions[:, None] - window
                scores = tl.where(seen, scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, 1) * factor)
            weights = tl.exp2(scores * factor - new_top[:, None])
            kept = tl.exp2(top - new_top)
            total = total * kept + tl.sum(weights, 1)
            values = load_numbers(keys_at + HALF, loaded, queries)
            weights = times_scales(weights, scales_at + HALF, present).to(values.dtype)
            attended = tl.dot(weights, values, attended * kept[:, None], input_precision="ieee")
            top = new_top
    return attended, top, total
