"""Attention of a few queries to a span of one sequence's blocks: the loop of paged decode."""

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
    tile_block,
    tile_order,
    tile_pointers,
)


@triton.jit
def attend_span(
    queries,
    keys,
    first,
    begin,
    end,
    scale,
    soft_cap,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    IS_CUT: tl.constexpr,
    HAS_CAP: tl.constexpr,
):
    """Attention of queries [heads, BLOCK_D] to the tokens begin <= token < end of one sequence.

    keys: Keys. begin: as for `tile_pointers`. first: where IS_CUT, tokens of the first tile
    before this one are not seen. Returns fp32 [heads, BLOCK_D], zeros where there are no tokens,
    and the log 2 of the sums of exponentials [heads], -inf there.
    """
    BLOCK_G: tl.constexpr = queries.shape[0]
    BLOCK_D: tl.constexpr = queries.shape[1]
    order = tile_order(keys.from_right, TILE, BLOCK_TOKENS)
    block = tile_block(keys, begin, end, TILE, BLOCK_TOKENS)
    top = tl.full([BLOCK_G], -float("inf"), tl.float32)
    # One partial sum a column: they are added up once, after the last tile.
    total = tl.zeros([BLOCK_G, TILE], tl.float32)
    attended = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, TILE):
        tokens = start + order
        seen = tokens < end
        if IS_CUT:
            seen &= tokens >= first
        keys_at = tile_pointers(
            keys, block, start, tokens, seen, HALF, BLOCK_TOKENS, TILE, HEAD_DIM, BLOCK_D
        )
        scales_at = scale_pointers(
            keys, block, start, tokens, seen, HALF, BLOCK_TOKENS, TILE, HEAD_DIM
        )
        block = tile_block(keys, start + TILE, end, TILE, BLOCK_TOKENS)
        loaded = loaded_places(seen, BLOCK_D, HEAD_DIM)
        products = tl.dot(
            queries, tl.trans(load_numbers(keys_at, loaded, queries)), input_precision="ieee"
        )
        products = times_scales(products, scales_at, seen)
        scores = scaled(products, scale, soft_cap, HAS_CAP)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        kept = tl.exp2(top - new_top)
        total = total * kept[:, None] + weights
        values = load_numbers(keys_at + HALF, loaded, queries)
        weights = times_scales(weights, scales_at + HALF, seen)
        attended = tl.dot(
            weights.to(values.dtype), values, attended * kept[:, None], input_precision="ieee"
        )
        top = new_top

    sum_ = tl.sum(total, 1)
    sum_ = tl.where(sum_ > 0, sum_, 1.0)
    return attended / sum_[:, None], top + tl.log2(sum_)
