"""Kernels of prefix-shared attention: partial attention of every tile and split, and its merge."""

import triton
import triton.language as tl

from kernels.triton_ops.prefix_work import distinct_work, prefix_work
from kernels.triton_ops.tiles import key_places, scaled

LOWEST = tl.constexpr(-1e30)
SMALLEST = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def attend_tile(
    partial,
    sums,
    query,
    pool,
    blocks,
    token,
    stop,
    position,
    begin,
    end,
    from_right,
    kv_head,
    kv_heads,
    split,
    scale,
    soft_cap,
    query_token_stride,
    query_head_stride,
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
    """Attention of queries token to stop, QUERIES // GROUP at most, to keys begin to end.

    blocks: int32, the keys' blocks. position: that of the query `token`, read where IS_CAUSAL.
    Where there is no key only the sums are written.
    """
    rows = tl.arange(0, QUERIES)
    tokens = token + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    live = (rows < QUERIES // GROUP * GROUP) & (tokens < stop)
    if begin >= end:
        results = (tokens.to(tl.int64) * kv_heads * GROUP + heads) * NUM_SPLITS + split
        tl.store(sums + results, tl.full([QUERIES], -float("inf"), tl.float32), mask=live)
    else:
        places = tl.arange(0, BLOCK_D)
        inside = live[:, None] & (places < HEAD_DIM)[None, :]
        starts = tokens.to(tl.int64) * query_token_stride + heads * query_head_stride
        queries = tl.load(query + starts[:, None] + places[None, :], mask=inside, other=0.0)
        # Finite, so that a query that sees none of a tile's keys makes no NaN.
        top = tl.full([QUERIES], LOWEST, tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        attended = tl.zeros([QUERIES, BLOCK_D], tl.float32)
        for start in tl.range(begin, end, TILE):
            keys_tokens = start + tl.arange(0, TILE)
            stored = keys_tokens < end
            keys_at = key_places(
                blocks, keys_tokens, stored, from_right, HALF, BLOCK_TOKENS, HEAD_DIM
            )
            keys_at = pool + keys_at[:, None] + places[None, :]
            loaded = stored[:, None] & (places < HEAD_DIM)[None, :]
            keys = tl.load(keys_at, mask=loaded, other=0.0)
            products = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            scores = scaled(products, scale, soft_cap, HAS_CAP)
            seen = stored[None, :]
            if IS_CAUSAL:
                seen &= keys_tokens[None, :] <= (position + rows // GROUP)[:, None]
            scores = tl.where(seen, scores, -float("inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - new_top[:, None])
            kept = tl.exp2(top - new_top)
            total = total * kept + tl.sum(weights, 1)
            values = tl.load(keys_at + HALF, mask=loaded, other=0.0)
            attended = tl.dot(
                weights.to(values.dtype), values, attended * kept[:, None], input_precision="ieee"
            )
            top = new_top
        results = (tokens.to(tl.int64) * kv_heads * GROUP + heads) * NUM_SPLITS + split
        divisor = tl.maximum(total, SMALLEST)
        attended = attended / divisor[:, None]
        tl.store(partial + results[:, None] * HEAD_DIM + places[None, :], attended, mask=inside)
        logs = tl.where(total > 0, top + tl.log2(divisor), -float("inf"))
        tl.store(sums + results, logs, mask=live)


@triton.jit(do_not_specialize=["rows", "groups", "prefix_tiles", "distinct_tiles", "max_tokens"])
def prefix_kernel(
    partial,
    sums,
    query,
    pool,
    table,
    slots,
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
    table_slot_stride,
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

    Grid: (prefix_tiles * PREFIX_SPLITS + distinct_tiles * DISTINCT_SPLITS) * kv_heads. Prefix
    tiles stand first, as they take longest, those that read the same keys side by side.
    IS_SINGLE: one query a row; query_offsets is not read. HALF: elements of half a block.
    """
    program = tl.program_id(0)
    prefix_programs = prefix_tiles * kv_heads * PREFIX_SPLITS
    is_prefix = program < prefix_programs
    if is_prefix:
        kv_head = program // prefix_tiles % kv_heads
        split = program // (prefix_tiles * kv_heads)
        slot, token, stop, position, begin, end = prefix_work(
            slots,
            group_offsets,
            prefix_lengths,
            query_offsets,
            program % prefix_tiles,
            split,
            groups,
            max_tokens,
            PREFIX_QUERIES // GROUP,
            PREFIX_SPLITS,
            TILE,
            MIN_TILES,
            IS_SINGLE,
        )
    else:
        program -= prefix_programs
        kv_head = program % kv_heads
        split = program // (kv_heads * distinct_tiles)
        slot, token, stop, position, begin, end = distinct_work(
            slots,
            lengths,
            group_offsets,
            prefix_lengths,
            query_offsets,
            program // kv_heads % distinct_tiles,
            split,
            rows,
            groups,
            max_tokens,
            DISTINCT_QUERIES // GROUP,
            DISTINCT_SPLITS,
            TILE,
            MIN_TILES,
            IS_SINGLE,
        )
        split += PREFIX_SPLITS
    # The blocks of a prefix are full: the order of their tokens does not matter.
    right = tl.load(from_right + slot)
    blocks = table + slot * table_slot_stride + kv_head * table_head_stride
    # Tiles of one size are attended to by the same code: the condition is then constant.
    if is_prefix | (PREFIX_QUERIES == DISTINCT_QUERIES):
        attend_tile(
            partial,
            sums,
            query,
            pool,
            blocks,
            token,
            stop,
            position,
            begin,
            end,
            right,
            kv_head,
            kv_heads,
            split,
            scale,
            soft_cap,
            query_token_stride,
            query_head_stride,
            GROUP,
            HEAD_DIM,
            BLOCK_D,
            HALF,
            BLOCK_TOKENS,
            PREFIX_QUERIES,
            TILE,
            PREFIX_SPLITS + DISTINCT_SPLITS,
            (PREFIX_QUERIES == DISTINCT_QUERIES) and not IS_SINGLE,
            HAS_CAP,
        )
    else:
        attend_tile(
            partial,
            sums,
            query,
            pool,
            blocks,
            token,
            stop,
            position,
            begin,
            end,
            right,
            kv_head,
            kv_heads,
            split,
            scale,
            soft_cap,
            query_token_stride,
            query_head_stride,
            GROUP,
            HEAD_DIM,
            BLOCK_D,
            HALF,
            BLOCK_TOKENS,
            DISTINCT_QUERIES,
            TILE,
            PREFIX_SPLITS + DISTINCT_SPLITS,
            not IS_SINGLE,
            HAS_CAP,
        )


@triton.jit(do_not_specialize=["items"])
def merge_kernel(
    output,
    partial,
    sums,
    items,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ITEMS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """output [items, head_dim] from partial fp32 [items, splits, head_dim] and sums fp32 [items,
    splits]; an item is one head of one query. Partials whose sum is -inf were never written.
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
    merged = merged / tl.maximum(total, SMALLEST)[:, None]
    result = output + item[:, None] * HEAD_DIM + places[None, :]
    shown = inside[:, None] & (places < HEAD_DIM)[None, :]
    tl.store(result, merged.to(output.dtype.element_ty), mask=shown)
