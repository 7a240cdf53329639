"""Prefix-shared attention: tiles of groups and of rows in one launch, then a merge."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
import triton
from torch import Tensor

from muxcluster.kernels.attention.prefix_attention import check_prefix_attention
from muxcluster.kernels.layout import check_sinks, half_rows, stored_in
from muxcluster.kernels.triton_ops.parts.prefix_kernels import merge_kernel, prefix_kernel
from muxcluster.kernels.triton_ops.parts.prefix_tiling import (
    TILES_IN_FLIGHT,
    PrefixShape,
    PrefixTiling,
    choose_tiling,
    device_tiling,
    kernel_constants,
    merge_constants,
)
from muxcluster.kernels.triton_ops.parts.rounded_kv import readable
from muxcluster.kernels.triton_ops.parts.tiles import pipeline_stages, score_factors
from muxcluster.kernels.triton_ops.specimens.attention import attention_specimen, pool_block
from muxcluster.kernels.triton_ops.specimens.specimen import (
    ALL,
    AMPERE,
    CONVERTING,
    HOPPER,
    Specimen,
)


def prefix_attention(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    lengths: Tensor,
    from_right: Tensor,
    group_offsets: Tensor,
    prefix_lengths: Tensor,
    *,
    block_tokens: int,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    query_offsets: Tensor | None = None,
    tiling: PrefixTiling | None = None,
) -> Tensor:
    """As `muxcluster.kernels.attention.prefix_attention.prefix_attention`, on the tensors' device.

    Nothing waits for the device and the grid follows from shapes alone (the most tiles so many
    tokens can need; programs without work end at once), so the call can be captured in a CUDA
    graph. Values are not checked; a row sees no more than its table holds.

    tiling: block sizes and splits, by default chosen from the shapes.
    """
    # The merge is a second kernel: merging in the program that comes last would need counters to be
    # zeroed before every launch, and an order of memory between programs that the interpreter
    # cannot show to hold.
    grouped = (table, table_rows, lengths, from_right, group_offsets, prefix_lengths)
    check_prefix_attention(query, *grouped, soft_cap, query_offsets)
    check_sinks(query, sinks)
    halves = readable(half_rows(pool, stored_in(query, kv_dtype), block_tokens, query.shape[2]))
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not output.numel():
        return output
    single = query_offsets is None
    shape = _shape_of(query, table.shape[1], len(table_rows), len(prefix_lengths), single)
    max_tokens = table.shape[2] * block_tokens
    chosen = tiling or device_tiling(shape, max_tokens, query.dtype, query.device)
    partial, sums = _partials(query, chosen)
    prefix_kernel[(shape.programs(chosen),)](
        partial,
        sums,
        query,
        halves,
        *grouped,
        group_offsets if query_offsets is None else query_offsets,
        *score_factors(scale, soft_cap),
        *_counts(shape, chosen),
        max_tokens,
        *query.stride()[:2],
        *table.stride()[:2],
        **kernel_constants(shape, chosen),
        HALF=halves.stride(0),
        BLOCK_TOKENS=block_tokens,
        HAS_CAP=soft_cap is not None,
        num_warps=chosen.num_warps,
        num_stages=pipeline_stages(block_tokens, chosen.tile, TILES_IN_FLIGHT),
    )
    _merge(output, partial, sums, sinks, shape, chosen)
    return output


def _shape_of(query: Tensor, kv_heads: int, rows: int, groups: int, single: bool) -> PrefixShape:
    tokens, heads, head_dim = query.shape
    return PrefixShape(tokens, rows, groups, kv_heads, heads // kv_heads, head_dim, single)


def _partials(query: Tensor, tiling: PrefixTiling) -> tuple[Tensor, Tensor]:
    """Return memory for what the splits leave, fp32.

    partial: [tokens, heads, splits, head_dim]; sums: without the last dimension.
    """
    tokens, heads, head_dim = query.shape
    splits = (tokens, heads, tiling.prefix_splits + tiling.distinct_splits)
    partial = torch.empty((*splits, head_dim), dtype=torch.float32, device=query.device)
    return partial, torch.empty(splits, dtype=torch.float32, device=query.device)


def _counts(shape: PrefixShape, tiling: PrefixTiling) -> tuple[int, int, int, int, int]:
    """Return the kernel's rows, groups, kv_heads, prefix_tiles and distinct_tiles."""
    prefix_tiles = shape.prefix_tiles(tiling.prefix_queries)
    distinct_tiles = shape.distinct_tiles(tiling.distinct_queries)
    return shape.rows, shape.groups, shape.kv_heads, prefix_tiles, distinct_tiles


def _merge(
    output: Tensor,
    partial: Tensor,
    sums: Tensor,
    sinks: Tensor | None,
    shape: PrefixShape,
    tiling: PrefixTiling,
) -> None:
    """Write the output [tokens, heads, head_dim] from what the splits left."""
    heads = shape.kv_heads * shape.group
    items = shape.tokens * heads
    constants = merge_constants(shape, tiling, has_sinks=sinks is not None)
    own = output if sinks is None else sinks
    grid = (triton.cdiv(items, constants["ITEMS"]),)
    merge_kernel[grid](output, partial, sums, own, items, heads, **constants, num_warps=4)


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def _specimens(
    dtype: str,
    shape: PrefixShape,
    *,
    block: int = 16,
    capped: bool = False,
    has_sinks: bool = False,
    capabilities: tuple[int, ...] = ALL,
    stored: str = "",
) -> Iterator[Specimen]:
    """Kernels of a model with `policy.block_tokens: block`. stored: as of `pool_block`."""
    tiling = choose_tiling(shape, 4096, _DTYPES[dtype], 1)
    tiling = replace(tiling, prefix_splits=4, distinct_splits=2)
    half, block_tokens = pool_block(block, shape.head_dim, stored)
    constants = kernel_constants(shape, tiling) | {
        "HALF": half,
        "BLOCK_TOKENS": block_tokens,
        "HAS_CAP": capped,
    }
    words = f"{dtype} d{shape.head_dim} g{shape.group} q{tiling.prefix_queries}"
    words += f"/{tiling.distinct_queries}{' chunks' * (not shape.single)}{' cap' * capped}"
    element = f"*{dtype}"
    types = {"partial": "*fp32", "sums": "*fp32", "query": element}
    types["pool"] = f"*{stored or dtype}"
    yield attention_specimen(
        f"prefix {words} b{block} {stored}".rstrip(),
        prefix_kernel,
        types,
        constants,
        {"query_token_stride", "query_head_stride"},
        capabilities,
        num_warps=tiling.num_warps,
        num_stages=pipeline_stages(block_tokens, tiling.tile, TILES_IN_FLIGHT),
    )
    types = {"output": element, "partial": "*fp32", "sums": "*fp32", "sinks": element}
    constants = merge_constants(shape, tiling, has_sinks=has_sinks)
    words = f"{dtype} d{shape.head_dim} of {constants['NUM_SPLITS']} splits{' sinks' * has_sinks}"
    name = f"prefix merge {words}"
    yield attention_specimen(name, merge_kernel, types, constants, set(), capabilities)


_CALLS = (
    # 256 decodes in groups of 16, of 64; 32 decodes of a model without grouped queries.
    _specimens("bf16", PrefixShape(256, 256, 16, 8, 4, 128, single=True)),
    _specimens("bf16", PrefixShape(256, 256, 4, 8, 4, 128, single=True)),
    _specimens("bf16", PrefixShape(32, 32, 1, 32, 1, 128, single=True)),
    # 7 prefills of 512 tokens beside 256 decodes.
    _specimens("fp16", PrefixShape(3840, 263, 8, 8, 4, 128, single=False), capped=True),
    _specimens("bf16", PrefixShape(263, 256, 64, 8, 4, 128, single=False)),
    _specimens("bf16", PrefixShape(64, 64, 8, 8, 8, 64, single=True)),
    _specimens("bf16", PrefixShape(256, 256, 1, 8, 8, 64, single=True)),
    # whose merge alone differs
    _specimens("bf16", PrefixShape(256, 256, 1, 8, 8, 64, single=True), has_sinks=True),
    _specimens("bf16", PrefixShape(64, 64, 4, 32, 1, 80, single=True)),
    _specimens("bf16", PrefixShape(64, 64, 2, 32, 1, 96, single=True)),
    _specimens("bf16", PrefixShape(700, 64, 2, 8, 2, 256, single=False)),
    _specimens("fp32", PrefixShape(64, 64, 4, 8, 4, 128, single=True)),
    _specimens("bf16", PrefixShape(256, 256, 16, 8, 4, 128, single=True), stored="i8"),
    _specimens(
        "bf16",
        PrefixShape(256, 256, 16, 8, 4, 128, single=True),
        capabilities=AMPERE,
        stored="u8",
    ),
    _specimens(
        "bf16",
        PrefixShape(256, 256, 16, 8, 4, 128, single=True),
        capabilities=CONVERTING,
        stored="fp8e4nv",
    ),
    _specimens("bf16", PrefixShape(256, 256, 16, 8, 4, 128, single=True), block=32),
    _specimens("bf16", PrefixShape(256, 256, 16, 8, 4, 128, single=True), block=64),
    _specimens(
        "bf16",
        PrefixShape(256, 256, 4, 8, 4, 128, single=True),
        block=64,
        capabilities=HOPPER,
    ),
    _specimens(
        "bf16",
        PrefixShape(32, 32, 1, 32, 1, 128, single=True),
        block=64,
        capabilities=HOPPER,
    ),
    _specimens(
        "bf16",
        PrefixShape(64, 64, 8, 8, 8, 64, single=True),
        block=64,
        capabilities=HOPPER,
    ),
)
# Calls whose tiles are the same share a kernel; one for more architectures stands first.
SPECIMENS: tuple[Specimen, ...] = tuple(
    {each.name: each for each in reversed((*chain(*_CALLS),))}.values()
)[::-1]
