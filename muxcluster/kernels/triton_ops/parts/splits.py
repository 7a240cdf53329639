"""Splits decode attention over the sequence, and merges the splits into one result.

The scheme of FlashDecoding: each split attends to a span of the context and leaves its normalised
output and the logarithm of its sum of exponentials; a second kernel weighs them.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from muxcluster.kernels.triton_ops.parts.sinks import share_of_keys
from muxcluster.kernels.triton_ops.parts.tiles import is_in_block

# A split has at least so many tokens: below, its partial output costs more than it gains.
SPLIT_TOKENS = 256
# Programs wanted, so that ragged rows even out: about three run at a time.
PROGRAMS_PER_MULTIPROCESSOR = 8
MAX_SPLITS = 128
SPLITS_AT_ONCE = tl.constexpr(16)  # Splits the merge reads together


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of the device; under MPS those of this process's SM share."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def choose_splits(rows: int, kv_heads: int, max_tokens: int, device: torch.device) -> int:
    """Return splits of each row, from shapes alone, so that a CUDA graph holds for any lengths.

    max_tokens: what a table row can hold. 1 on CPU.
    """
    if device.type != "cuda" or not rows:
        return 1
    wanted = triton.cdiv(PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(device), rows * kv_heads)
    return max(1, min(wanted, max_tokens // SPLIT_TOKENS, MAX_SPLITS))


def span_constants(
    head_dim: int,
    tile: int,
    split_tokens: int,
    block_tokens: int,
    *,
    has_window: bool,
    has_sinks: bool,
) -> dict[str, int | bool]:
    """Return the constexpr arguments that decode and merge have in common.

    ALIGN: what a row's first tile of keys begins at a multiple of.
    """
    # Tiles that span blocks may begin anywhere, which spares them the mask of a window's first
    # tile.
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "TILE": tile,
        "MIN_TILES": triton.cdiv(split_tokens, tile),
        "ALIGN": tile if is_in_block(block_tokens, tile) else 1,
        "HAS_WINDOW": has_window,
        "HAS_SINKS": has_sinks,
    }


@triton.jit
def split_span(context, num_splits, TILE: tl.constexpr, MIN_TILES: tl.constexpr):
    """Tokens of each split of a context, a multiple of TILE; a short context has fewer splits."""
    tiles = tl.cdiv(tl.cdiv(context, TILE), num_splits)
    return tl.maximum(tiles, MIN_TILES) * TILE


@triton.jit
def seen_span(length, window, ALIGN: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """First of a row's tokens that its last one sees, and where the tile that holds it begins."""
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(length - window, 0)
    return first, first // ALIGN * ALIGN


@triton.jit
def bounds_of_split(split, num_splits, begin, end, TILE: tl.constexpr, MIN_TILES: tl.constexpr):
    """The split's part of the tokens begin <= token < end: nothing where its begin is the end or
    more."""
    span = split_span(end - begin, num_splits, TILE, MIN_TILES)
    begin += split * span
    return begin, tl.minimum(begin + span, end)


@triton.jit(do_not_specialize=["heads", "num_splits", "max_tokens", "window"])
def merge_kernel(
    output,
    partial,
    sums,
    lengths,
    sinks,
    heads,
    num_splits,
    max_tokens,
    window,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    ALIGN: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """output [rows, heads, head_dim] from partial fp32 [rows, heads, splits, head_dim] and sums
    fp32 [rows, heads, splits]; a program merges one head of one row. Sinks [heads] are read where
    HAS_SINKS.
    """
    item = tl.program_id(0)
    length = tl.minimum(tl.load(lengths + item // heads).to(tl.int32), max_tokens)
    _, begin = seen_span(length, window, ALIGN, HAS_WINDOW)
    context = length - begin
    count = tl.cdiv(context, split_span(context, num_splits, TILE, MIN_TILES))
    places = tl.arange(0, BLOCK_D)
    first = item.to(tl.int64) * num_splits
    top = -float("inf")
    total = 0.0
    merged = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, count, SPLITS_AT_ONCE):
        splits = start + tl.arange(0, SPLITS_AT_ONCE)
        used = splits < count
        logs = tl.load(sums + first + splits, mask=used, other=-float("inf"))
        new_top = tl.maximum(top, tl.max(logs, 0))
        weights = tl.exp2(logs - new_top)
        rows = partial + (first + splits)[:, None] * HEAD_DIM + places[None, :]
        values = tl.load(rows, mask=used[:, None] & (places < HEAD_DIM)[None, :], other=0.0)
        kept = tl.exp2(top - new_top)
        merged = merged * kept + tl.sum(weights[:, None] * values, 0)
        total = total * kept + tl.sum(weights, 0)
        top = new_top
    total = tl.where(total > 0, total, 1.0)
    merged = merged / total
    if HAS_SINKS:
        merged *= share_of_keys(top + tl.log2(total), tl.load(sinks + item % heads))
    result = output + item.to(tl.int64) * HEAD_DIM + places
    tl.store(result, merged.to(output.dtype.element_ty), mask=places < HEAD_DIM)
