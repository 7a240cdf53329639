"""Which queries and keys a program of prefix-shared attention takes, found on the device."""

import triton
import triton.language as tl

from kernels.triton_ops.splits import split_span

SEARCHED = tl.constexpr(128)


@triton.jit
def owner_of(tile, offsets, token_offsets, owners, INDIRECT: tl.constexpr, TILE: tl.constexpr):
    """The owner (group or row) of a tile of TILE queries, and its first and end query.

    Owner i's queries are from offsets[i] to offsets[i + 1], each INDIRECTly an index to
    token_offsets; its tiles begin at first // TILE + i, so that no two owners have one in common
    whatever the offsets. All owners are compared at once: a search would wait for each step.
    """
    before = tl.zeros([SEARCHED], tl.int32)
    for start in range(0, owners, SEARCHED):
        owner = start + tl.arange(0, SEARCHED)
        inside = owner < owners
        first = tl.load(offsets + owner, mask=inside, other=0)
        if INDIRECT:
            first = tl.load(token_offsets + first, mask=inside, other=0)
        before += (inside & (first.to(tl.int32) // TILE + owner <= tile)).to(tl.int32)
    found = tl.sum(before, 0) - 1
    first = tl.load(offsets + found)
    end = tl.load(offsets + found + 1)
    if INDIRECT:
        first = tl.load(token_offsets + first)
        end = tl.load(token_offsets + end)
    return found, first.to(tl.int32), end.to(tl.int32)


@triton.jit
def prefix_of(row, group_offsets, prefix_lengths, groups):
    """Tokens of the prefix of the row's group."""
    before = tl.zeros([SEARCHED], tl.int32)
    for start in range(0, groups, SEARCHED):
        group = start + tl.arange(0, SEARCHED)
        inside = group < groups
        first = tl.load(group_offsets + group, mask=inside, other=0)
        before += (inside & (first <= row)).to(tl.int32)
    return tl.load(prefix_lengths + tl.sum(before, 0) - 1).to(tl.int32)


@triton.jit
def prefix_work(
    slots,
    group_offsets,
    prefix_lengths,
    query_offsets,
    tile,
    split,
    groups,
    max_tokens,
    QUERIES: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    IS_SINGLE: tl.constexpr,
):
    """What a split of a tile of QUERIES of a group does: slot of the table to read, first and end
    query, position of the first (beyond the keys: all are seen), first and end key (none where
    the tile is superfluous).
    """
    group, first, stop = owner_of(
        tile, group_offsets, query_offsets, groups, not IS_SINGLE, QUERIES
    )
    token = first + (tile - first // QUERIES - group) * QUERIES
    live = token < stop
    # An empty last group has no first row.
    slot = tl.load(slots + tl.load(group_offsets + group), mask=live, other=0).to(tl.int64)
    prefix = tl.minimum(tl.load(prefix_lengths + group).to(tl.int32), max_tokens)
    span = split_span(prefix, SPLITS, TILE, MIN_TILES)
    end = tl.where(live, tl.minimum(split * span + span, prefix), 0)
    return slot, token, stop, prefix, split * span, end


@triton.jit
def distinct_work(
    slots,
    lengths,
    group_offsets,
    prefix_lengths,
    query_offsets,
    tile,
    split,
    rows,
    groups,
    max_tokens,
    QUERIES: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    IS_SINGLE: tl.constexpr,
):
    """As `prefix_work`, for a tile of a row's queries and its distinct keys."""
    row = tile
    token = tile
    stop = tile + 1
    last = stop
    if not IS_SINGLE:
        row, first, last = owner_of(tile, query_offsets, query_offsets, rows, False, QUERIES)
        token = first + (tile - first // QUERIES - row) * QUERIES
        stop = tl.minimum(token + QUERIES, last)
    # Keys after the tile's last query are not read.
    end = tl.minimum(tl.load(lengths + row).to(tl.int32), max_tokens) - (last - stop)
    prefix = prefix_of(row, group_offsets, prefix_lengths, groups)
    span = split_span(end - prefix, SPLITS, TILE, MIN_TILES)
    begin = prefix + split * span
    position = end - (stop - token)
    end = tl.where(token < stop, tl.minimum(begin + span, end), 0)
    return tl.load(slots + row).to(tl.int64), token, stop, position, begin, end
