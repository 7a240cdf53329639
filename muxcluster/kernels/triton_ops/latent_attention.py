"""Attention over latents in the pool, of prompt chunks and of decode steps.

FlashAttention 2 over a head-wise block table. All heads attend to the same latents, so one program
takes a tile of one row's queries times heads in the rows of its matrices, and a latent that it has
read serves as key, and its first elements as value. A decode step may split the context, as
FlashDecoding does.

The device finds a tile's row, as in paged prefill: tile t belongs to the last row i with
offsets[i] * heads // members + i <= t, members being the rows of a tile's matrices.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.attention.latent_attention import check_latent_attention
from muxcluster.kernels.layout import half_rows
from muxcluster.kernels.triton_ops.parts.attend_prompt import LOWEST
from muxcluster.kernels.triton_ops.parts.prefill_tiling import Tiling, capability
from muxcluster.kernels.triton_ops.parts.splits import (
    SPLIT_TOKENS,
    bounds_of_split,
    choose_splits,
    merge_kernel,
    span_constants,
)
from muxcluster.kernels.triton_ops.parts.tiles import (
    TABLE_STRIDES,
    pipeline_stages,
    score_factors,
)
from muxcluster.kernels.triton_ops.specimens.attention import attention_specimen, pool_block
from muxcluster.kernels.triton_ops.specimens.specimen import ALL, Specimen


class Latents(NamedTuple):
    """Where one sequence's latents are read: blocks is int32, its table row of the first head."""

    pool: Any
    blocks: Any
    head_stride: Any
    from_right: Any


@triton.jit
def row_of_members(query_offsets, rows, tile, HEADS: tl.constexpr, BLOCK_M: tl.constexpr):
    """The row whose queries times heads the tile holds, if it holds any: the module says which."""
    found = 0
    for first in range(0, rows, 128):
        row = first + tl.arange(0, 128)
        offsets = tl.load(query_offsets + row, mask=row < rows, other=0).to(tl.int32)
        before = (offsets * HEADS // BLOCK_M + row <= tile) & (row < rows)
        found += tl.sum(before.to(tl.int32), 0)
    return found - 1


@triton.jit
def load_latents(
    latents,
    start,
    tokens,
    seen,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Elements FIRST to FIRST + COUNT of the latents of `tokens` [TILE], [TILE, BLOCK].

    latents: Latents. tokens: from `start` on. Zeros for tokens not `seen` and beyond COUNT.
    """
    # Each KV head holds 2 * HEAD_DIM neighbouring elements: half as a key, half as a value.
    steps = tl.arange(0, BLOCK)
    places = FIRST + steps
    heads = places // (2 * HEAD_DIM)
    within = places // HEAD_DIM % 2 * HALF + places % HEAD_DIM
    inside = tl.full([BLOCK], True, tl.int1)
    if BLOCK != COUNT:
        inside = steps < COUNT
    offsets = tokens % BLOCK_TOKENS
    offsets = tl.where(latents.from_right, BLOCK_TOKENS - 1 - offsets, offsets)
    read = seen[:, None] & inside[None, :]
    ids_at = latents.blocks + heads * latents.head_stride
    if BLOCK_TOKENS % TILE == 0:
        # the whole tile is in one column: one block a head
        ids = tl.load(ids_at + start // BLOCK_TOKENS, mask=inside, other=0)
        elements = ids.to(tl.int64) * (2 * HALF) + within
        pointers = latents.pool + elements[None, :] + (offsets * HEAD_DIM)[:, None]
    else:
        columns = tokens // BLOCK_TOKENS
        ids = tl.load(ids_at[None, :] + columns[:, None], mask=read, other=0)
        elements = ids.to(tl.int64) * (2 * HALF) + within[None, :]
        pointers = latents.pool + elements + (offsets * HEAD_DIM)[:, None]
    return tl.load(pointers, mask=read, other=0.0)


@triton.jit(do_not_specialize=["rows", "num_splits", "max_tokens", *TABLE_STRIDES])
def latent_kernel(
    output,
    sums,
    query,
    pool,
    table,
    table_rows,
    query_offsets,
    starts,
    from_right,
    scale,
    rows,
    num_splits,
    max_tokens,
    query_token_stride,
    query_head_stride,
    table_row_stride,
    table_head_stride,
    HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_V: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    IS_DECODE: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """output [tokens, heads, splits, VALUE_WIDTH] and, where IS_SPLIT, sums fp32 [tokens, heads,
    splits].

    Grid: tiles of queries times heads, splits. REST: elements of a latent behind its value.
    HEAD_DIM, HALF, BLOCK_TOKENS: of the pool's blocks. IS_DECODE: each row has one query.
    """
    split = tl.program_id(1)
    if IS_DECODE:
        PARTS: tl.constexpr = (HEADS + BLOCK_M - 1) // BLOCK_M
        row = tl.program_id(0) // PARTS
        first = row
        count = HEADS
        skipped = tl.program_id(0) % PARTS * BLOCK_M
    else:
        # The last tiles see the most tokens: they start first.
        tile = tl.num_programs(0) - 1 - tl.program_id(0)
        row = row_of_members(query_offsets, rows, tile, HEADS, BLOCK_M)
        first = tl.load(query_offsets + row).to(tl.int32)
        count = (tl.load(query_offsets + row + 1).to(tl.int32) - first) * HEADS
        skipped = (tile - first * HEADS // BLOCK_M - row) * BLOCK_M
        if skipped >= count:
            return
    start = tl.load(starts + row).to(tl.int32)
    last = (tl.minimum(skipped + BLOCK_M, count) - 1) // HEADS
    begin = 0
    end = tl.minimum(start + last + 1, max_tokens)
    if IS_SPLIT:
        begin, end = bounds_of_split(split, num_splits, begin, end, TILE, MIN_TILES)
        if begin >= end:
            return
    table_row = tl.load(table_rows + row).to(tl.int64)
    right = tl.load(from_right + table_row)
    latents = Latents(pool, table + table_row * table_row_stride, table_head_stride, right)

    members = skipped + tl.arange(0, BLOCK_M)
    own = members < count
    positions = start + members // HEADS
    indices = (first + members // HEADS).to(tl.int64)
    heads = members % HEADS
    of_value = tl.arange(0, BLOCK_V)
    of_rest = tl.arange(0, BLOCK_R)
    inside = own[:, None] & (of_value < VALUE_WIDTH)[None, :]
    query += (indices * query_token_stride + heads * query_head_stride)[:, None]
    queries = tl.load(query + of_value[None, :], mask=inside, other=0.0)
    rests = tl.load(
        query + VALUE_WIDTH + of_rest[None, :],
        mask=own[:, None] & (of_rest < REST)[None, :],
        other=0.0,
    )

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    attended = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for at in tl.range(begin, end, TILE):
        tokens = at + tl.arange(0, TILE)
        stored = tokens < end
        values = load_latents(
            latents, at, tokens, stored, 0, VALUE_WIDTH, BLOCK_V, HEAD_DIM, HALF, BLOCK_TOKENS, TILE
        )
        others = load_latents(
            latents,
            at,
            tokens,
            stored,
            VALUE_WIDTH,
            REST,
            BLOCK_R,
            HEAD_DIM,
            HALF,
            BLOCK_TOKENS,
            TILE,
        )
        products = tl.dot(rests, tl.trans(others), input_precision="ieee")
        products = tl.dot(queries, tl.trans(values), products, input_precision="ieee")
        seen = stored[None, :] & (tokens[None, :] <= positions[:, None])
        scores = tl.where(seen, products * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new_top[:, None])
        kept = tl.exp2(top - new_top)
        total = total * kept + tl.sum(weights, 1)
        attended = tl.dot(
            weights.to(values.dtype), values, attended * kept[:, None], input_precision="ieee"
        )
        top = new_top
    attended = attended / tl.where(total > 0, total, 1.0)[:, None]
    results = (indices * HEADS + heads) * num_splits + split
    output += results[:, None] * VALUE_WIDTH + of_value[None, :]
    tl.store(output, attended.to(output.dtype.element_ty), mask=inside)
    if IS_SPLIT:
        logs = tl.where(total > 0, top + tl.log2(total), -float("inf"))
        tl.store(sums + results, logs, mask=own)


def latent_attention(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    value_width: int,
    scale: float,
    is_decode: bool = False,
    num_splits: int | None = None,
    split_tokens: int = SPLIT_TOKENS,
    tiling: Tiling | None = None,
) -> Tensor:
    """As `muxcluster.kernels.attention.latent_attention.latent_attention`, on the tensors' device.

    Nothing waits for the device and the grid follows from shapes alone, so the call can be
    captured in a CUDA graph. Offsets and positions are not checked; a row sees no more than its
    table holds. num_splits: most splits of a row of a decode step, by default chosen from the
    shapes. split_tokens: least tokens of a split. tiling: chosen from shapes by default.
    """
    check_latent_attention(query, table, table_rows, query_offsets, starts, from_right, value_width)
    tokens, heads, width = query.shape
    rows, max_tokens = len(table_rows), table.shape[2] * block_tokens
    head_dim = width // (2 * table.shape[1])
    halves = half_rows(pool, query.dtype, block_tokens, head_dim)
    output = query.new_empty((tokens, heads, value_width))
    if not output.numel():
        return output
    if tiling is None:
        members = heads if is_decode else triton.cdiv(tokens, rows) * heads
        major = capability(query.device)
        tiling = choose_latent_tiling(members, query.dtype, major, is_decode=is_decode)
    parts = triton.cdiv(heads, tiling.members)
    if num_splits is None:
        num_splits = choose_splits(rows, parts, max_tokens, query.device) if is_decode else 1
    tiles = rows * parts if is_decode else tokens * heads // tiling.members + rows
    partial, sums = output, output
    if num_splits > 1:
        sums = query.new_empty((tokens, heads, num_splits), dtype=torch.float32)
        partial = sums.new_empty((*sums.shape, value_width))
    shape = _span_constants(value_width, tiling, split_tokens, block_tokens)
    latent_kernel[tiles, num_splits](
        partial,
        sums,
        query,
        halves,
        table,
        table_rows,
        query_offsets,
        starts,
        from_right,
        score_factors(scale, None)[0],
        rows,
        num_splits,
        max_tokens,
        *query.stride()[:2],
        *table.stride()[:2],
        **tile_constants(heads, width, value_width, tiling, split_tokens),
        HEAD_DIM=head_dim,
        HALF=halves.stride(0),
        BLOCK_TOKENS=block_tokens,
        IS_DECODE=is_decode,
        IS_SPLIT=num_splits > 1,
        num_warps=tiling.num_warps,
        num_stages=pipeline_stages(block_tokens, tiling.keys, tiling.tiles_in_flight),
    )
    if num_splits > 1:
        no_sinks = query
        limits = (heads, num_splits, max_tokens, 0)
        merge_kernel[tokens * heads,](output, partial, sums, starts + 1, no_sinks, *limits, **shape)
    return output


def _span_constants(
    value_width: int, tiling: Tiling, split_tokens: int, block_tokens: int
) -> dict[str, int | bool]:
    has = {"has_window": False, "has_sinks": False}
    return span_constants(value_width, tiling.keys, split_tokens, block_tokens, **has)


def tile_constants(
    heads: int, width: int, value_width: int, tiling: Tiling, split_tokens: int
) -> dict[str, int]:
    """Return the constexpr arguments that follow from the model's sizes and a tile's."""
    rest = width - value_width
    return {
        "HEADS": heads,
        "BLOCK_M": tiling.members,
        "VALUE_WIDTH": value_width,
        "BLOCK_V": max(16, triton.next_power_of_2(value_width)),
        "REST": rest,
        "BLOCK_R": max(16, triton.next_power_of_2(rest)),
        "TILE": tiling.keys,
        "MIN_TILES": triton.cdiv(split_tokens, tiling.keys),
    }


def choose_latent_tiling(
    members: int, dtype: torch.dtype, major: int, *, is_decode: bool
) -> Tiling:
    """Return tiles for rows of so many queries times heads, each result some 512 elements long.

    major: compute capability.
    """
    if dtype.itemsize > 2:
        return Tiling(16, 16, 4, 1)
    # where 64 take more registers than there are, in a context in splits
    is_small = major < 9 or (is_decode and major > 9)
    block = max(16, min(32 if is_small else 64, triton.next_power_of_2(members)))
    return Tiling(block, 32, 4 if block == 16 else 8, 1)


def _specimens(
    dtype: str,
    heads: int,
    *,
    width: int = 576,
    value_width: int = 512,
    head_dim: int = 32,
    is_decode: bool = False,
    is_split: bool = False,
) -> Iterator[Specimen]:
    """Kernels of models of these sizes. head_dim: of the KV heads that hold a latent."""
    exact = torch.float32 if dtype == "fp32" else torch.bfloat16
    half, block_tokens = pool_block(16, head_dim)
    for number in ALL:
        members = heads if is_decode else 4096
        tiling = choose_latent_tiling(members, exact, number // 10, is_decode=is_decode)
        constants = tile_constants(heads, width, value_width, tiling, SPLIT_TOKENS) | {
            "HEAD_DIM": head_dim,
            "HALF": half,
            "BLOCK_TOKENS": block_tokens,
            "IS_DECODE": is_decode,
            "IS_SPLIT": is_split,
        }
        element = f"*{dtype}"
        types = {
            "output": "*fp32" if is_split else element,
            "sums": "*fp32" if is_split else element,
            "query": element,
            "pool": element,
        }
        kind = f"{'decode' if is_decode else 'prefill'}{' split' * is_split}"
        yield attention_specimen(
            f"latent_attention sm_{number} {kind} {dtype} w{width} h{heads} m{tiling.members}",
            latent_kernel,
            types,
            constants,
            {"query_token_stride", "query_head_stride"},
            (number,),
            num_warps=tiling.num_warps,
            num_stages=pipeline_stages(block_tokens, tiling.keys, tiling.tiles_in_flight),
        )
        if is_split:
            shape = _span_constants(value_width, tiling, SPLIT_TOKENS, block_tokens)
            types = {"output": element, "partial": "*fp32", "sums": "*fp32", "sinks": element}
            name = f"latent_attention sm_{number} merge {dtype} v{value_width}"
            yield attention_specimen(name, merge_kernel, types, shape, set(), (number,))


SPECIMENS: tuple[Specimen, ...] = tuple(
    chain(
        _specimens("bf16", 128),
        _specimens("fp32", 16),
        _specimens("bf16", 128, is_decode=True, is_split=True),
        _specimens("bf16", 16, is_decode=True),
        _specimens("bf16", 128, is_decode=True),
    )
)
