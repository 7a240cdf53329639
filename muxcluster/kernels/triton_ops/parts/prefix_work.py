"""Which queries and keys a program of prefix-shared attention takes, found on the device."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.parts.splits import split_span

SEARCHED = tl.constexpr(128)


class Work(NamedTuple):
    """Queries token to stop of a KV head, and keys begin to end of the table row's sequence."""

    is_prefix: Any  # the keys are a group's prefix
    kv_head: Any
    split: Any  # of the prefix, or after those the distinct keys'
    table_row: Any
    token: Any
    stop: Any
    position: Any  # that of the query `token`
    begin: Any
    end: Any


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
    table_rows,
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
    """What a split of a tile of QUERIES of a group does: row of the table to read, first and end
    query, position of the first (beyond the keys: all are seen), first and end key (none where
    the tile is superfluous).
    """
    group, first, stop = owner_of(
        tile, group_offsets, query_offsets, groups, not IS_SINGLE, QUERIES
    )
    token = first + (tile - first // QUERIES - group) * QUERIES
    live = token < stop
    # An empty last group has no first row.
    row = tl.load(group_offsets + group)
    table_row = tl.load(table_rows + row, mask=live, other=0).to(tl.int64)
    prefix = tl.minimum(tl.load(prefix_lengths + group).to(tl.int32), max_tokens)
    span = split_span(prefix, SPLITS, TILE, MIN_TILES)
    end = tl.where(live, tl.minimum(split * span + span, prefix), 0)
    return table_row, token, stop, prefix, split * span, end


@triton.jit
def distinct_work(
    table_rows,
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
    return tl.load(table_rows + row).to(tl.int64), token, stop, position, begin, end


@triton.jit
def program_work(
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
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    PREFIX_QUERIES: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr,
    DISTINCT_QUERIES: tl.constexpr,
    DISTINCT_SPLITS: tl.constexpr,
    IS_SINGLE: tl.constexpr,
):
    """The Work of this program. Prefix tiles stand first, as they take longest, those that read
    the same keys side by side."""
    program = tl.program_id(0)
    prefix_programs = prefix_tiles * kv_heads * PREFIX_SPLITS
    is_prefix = program < prefix_programs
    if is_prefix:
        kv_head = program // prefix_tiles % kv_heads
        split = program // (prefix_tiles * kv_heads)
        table_row, token, stop, position, begin, end = prefix_work(
            table_rows,
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
        table_row, token, stop, position, begin, end = distinct_work(
            table_rows,
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
    return Work(is_prefix, kv_head, split, table_row, token, stop, position, begin, end)
