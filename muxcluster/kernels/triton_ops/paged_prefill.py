"""Causal attention of prompt chunks over the pool, earlier tokens included.

FlashAttention 2 over a head-wise block table. One program takes a tile of one row's queries with
all query heads of one KV head in the rows of its matrices, so that keys and values are read once
for the group. Keys that every query of the tile sees go without a mask.

The device finds a tile's row: tile t belongs to the last row i with offsets[i] // tile + i <= t,
so tokens // tile + rows programs a KV head are enough for any offsets. Nothing waits for the
device, and at most one program a row is idle; a grid of rows times the longest row would need the
offsets on the host, or idle programs in plenty.
"""

from collections.abc import Iterator
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.attention.paged_prefill import check_paged_prefill
from muxcluster.kernels.layout import check_sinks, half_rows, stored_in
from muxcluster.kernels.triton_ops.parts.attend_prompt import attend_prompt
from muxcluster.kernels.triton_ops.parts.prefill_tiling import Tiling, capability, choose_tiling
from muxcluster.kernels.triton_ops.parts.rounded_kv import readable
from muxcluster.kernels.triton_ops.parts.sinks import weight_of_sinks
from muxcluster.kernels.triton_ops.parts.tiles import (
    TABLE_STRIDES,
    Keys,
    pipeline_stages,
    score_factors,
)
from muxcluster.kernels.triton_ops.specimens.attention import attention_specimen, pool_block
from muxcluster.kernels.triton_ops.specimens.specimen import (
    ALL,
    AMPERE,
    CONVERTING,
    HOPPER,
    Specimen,
)


@triton.jit
def row_of_tile(query_offsets, rows, tile, TOKENS: tl.constexpr):
    """The row whose queries the tile holds, if it holds any: the module says which."""
    found = 0
    for first in range(0, rows, 128):
        row = first + tl.arange(0, 128)
        offsets = tl.load(query_offsets + row, mask=row < rows, other=0).to(tl.int32)
        before = (offsets // TOKENS + row <= tile) & (row < rows)
        found += tl.sum(before.to(tl.int32), 0)
    return found - 1


@triton.jit(do_not_specialize=["rows", "max_tokens", "window", *TABLE_STRIDES])
def prefill_kernel(
    output,
    query,
    pool,
    table,
    table_rows,
    query_offsets,
    starts,
    from_right,
    sinks,
    scale,
    soft_cap,
    rows,
    max_tokens,
    window,
    query_token_stride,
    query_head_stride,
    table_row_stride,
    table_head_stride,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """output [tokens, heads, head_dim]. Grid: tiles of queries, KV heads.

    BLOCK_M: queries times heads of a tile. TILE: keys at once. HALF: elements of half a block.
    Sinks [heads] are read where HAS_SINKS.
    """
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    # The last tiles see the most keys: they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = row_of_tile(query_offsets, rows, tile, TOKENS)
    first = tl.load(query_offsets + row).to(tl.int32)
    count = tl.load(query_offsets + row + 1).to(tl.int32) - first
    skipped = (tile - first // TOKENS - row) * TOKENS
    if skipped >= count:
        return
    table_row = tl.load(table_rows + row).to(tl.int64)
    low = tl.load(starts + row).to(tl.int32) + skipped
    high = tl.minimum(low + tl.minimum(TOKENS, count - skipped), max_tokens)
    right = tl.load(from_right + table_row)
    blocks = table + table_row * table_row_stride + kv_head * table_head_stride

    members = tl.arange(0, BLOCK_M)
    tokens = members // GROUP
    heads = kv_head * GROUP + members % GROUP
    places = tl.arange(0, BLOCK_D)
    # Where the group does not divide BLOCK_M, the last members are of the next tile's tokens.
    own = (tokens < TOKENS) & (skipped + tokens < count)
    inside = own[:, None] & (places < HEAD_DIM)[None, :]
    indices = (first + skipped + tokens).to(tl.int64)
    query += (indices * query_token_stride + heads * query_head_stride)[:, None]
    attended, top, total = attend_prompt(
        tl.load(query + places[None, :], mask=inside, other=0.0),
        tl.minimum(low + tokens, high - 1),
        low,
        high,
        Keys(pool, blocks, right),
        scale,
        soft_cap,
        window,
        HEAD_DIM,
        HALF,
        BLOCK_TOKENS,
        TILE,
        HAS_WINDOW,
        HAS_CAP,
    )
    if HAS_SINKS:
        total += weight_of_sinks(tl.load(sinks + heads), top)
    attended = attended / tl.where(total > 0, total, 1.0)[:, None]
    results = indices * (tl.num_programs(1) * GROUP) + heads
    output += results[:, None] * HEAD_DIM + places[None, :]
    tl.store(output, attended.to(output.dtype.element_ty), mask=inside)


def paged_prefill(
    query: Tensor,
    pool: Tensor,
    table: Tensor,
    table_rows: Tensor,
    query_offsets: Tensor,
    starts: Tensor,
    from_right: Tensor,
    *,
    block_tokens: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    kv_dtype: torch.dtype | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """As `muxcluster.kernels.attention.paged_prefill.paged_prefill`, on the tensors' device.

    Nothing waits for the device: offsets that do not rise from 0 to the number of tokens are not
    noticed, and a row sees no more than its table holds. tiling: chosen from shapes by default.
    """
    check_paged_prefill(
        query, table, table_rows, query_offsets, starts, from_right, sliding_window, soft_cap
    )
    check_sinks(query, sinks)
    tokens, heads, head_dim = query.shape
    rows = len(table_rows)
    halves = readable(half_rows(pool, stored_in(query, kv_dtype), block_tokens, head_dim))
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not output.numel():
        return output
    if scale <= 0:
        query, scale = query * (-1 if scale else 0), abs(scale) or 1.0
    kv_heads, group = table.shape[1], heads // table.shape[1]
    if tiling is None:
        members, major = triton.cdiv(tokens, rows) * group, capability(query.device)
        kind = {
            "is_widened": not halves.dtype.is_floating_point,
            "is_windowed": sliding_window is not None and soft_cap is None,
        }
        tiling = choose_tiling(members, group, head_dim, query.dtype, major, **kind)
    prefill_kernel[tokens // (tiling.members // group) + rows, kv_heads](
        output,
        query,
        halves,
        table,
        table_rows,
        query_offsets,
        starts,
        from_right,
        query if sinks is None else sinks,
        *score_factors(scale, soft_cap),
        rows,
        table.shape[2] * block_tokens,
        sliding_window or 0,
        *query.stride()[:2],
        *table.stride()[:2],
        **tile_constants(group, head_dim, tiling),
        HALF=halves.stride(0),
        BLOCK_TOKENS=block_tokens,
        HAS_WINDOW=sliding_window is not None,
        HAS_CAP=soft_cap is not None,
        HAS_SINKS=sinks is not None,
        num_warps=tiling.num_warps,
        num_stages=pipeline_stages(block_tokens, tiling.keys, tiling.tiles_in_flight),
    )
    return output


def tile_constants(group: int, head_dim: int, tiling: Tiling) -> dict[str, int]:
    """Return the constexpr arguments that follow from the shape of a tile."""
    return {
        "GROUP": group,
        "BLOCK_M": tiling.members,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "TILE": tiling.keys,
    }


def _specimens(
    dtype: str,
    head_dim: int,
    group: int,
    *,
    block: int = 16,
    members: int = 4096,
    limited: bool = False,
    has_sinks: bool = False,
    capabilities: tuple[int, ...] = ALL,
    stored: str = "",
) -> Iterator[Specimen]:
    """Kernels for chunks of so many members with `policy.block_tokens: block`.

    limited: with a sliding window, and with a cap unless there are sinks. stored: as of
    `pool_block`.
    """
    exact = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    half, block_tokens = pool_block(block, head_dim, stored)
    kind = {"is_widened": stored in ("i8", "u8"), "is_windowed": limited and has_sinks}
    tilings: dict[tuple[int, Tiling], list[int]] = {}
    for major in (8, 9, 10):
        tiling = choose_tiling(members, group, head_dim, exact, major, **kind)
        named = 9 if (9, tiling) in tilings else major  # mostly one tiling for both
        tilings.setdefault((named, tiling), []).append(10 * major)
    for (major, tiling), numbers in tilings.items():
        sizes = f"m{tiling.members} n{tiling.keys}{' window' * limited}"
        sizes += f"{' sinks' if has_sinks else ' cap' * limited} b{block}"
        constants = tile_constants(group, head_dim, tiling) | {
            "HALF": half,
            "BLOCK_TOKENS": block_tokens,
            "HAS_WINDOW": limited,
            "HAS_CAP": limited and not has_sinks,
            "HAS_SINKS": has_sinks,
        }
        wanted = tuple(each for each in numbers if each in capabilities)
        if wanted:
            yield attention_specimen(
                f"paged_prefill sm_{major}x {dtype} d{head_dim} g{group} {sizes} {stored}".rstrip(),
                prefill_kernel,
                dict.fromkeys(("output", "query", "sinks"), f"*{dtype}")
                | {"pool": f"*{stored or dtype}"},
                constants,
                {"query_token_stride", "query_head_stride"},
                wanted,
                num_warps=tiling.num_warps,
                num_stages=pipeline_stages(block_tokens, tiling.keys, tiling.tiles_in_flight),
            )


SPECIMENS: tuple[Specimen, ...] = tuple(
    chain(
        _specimens("bf16", 128, 4),
        _specimens("fp16", 128, 7, limited=True),
        _specimens("bf16", 128, 4, members=64),
        _specimens("bf16", 128, 8, members=16),
        _specimens("bf16", 64, 8),
        _specimens("bf16", 64, 8, members=64, limited=True),
        _specimens("bf16", 80, 1),
        _specimens("bf16", 96, 1, limited=True),
        _specimens("bf16", 256, 2, limited=True),
        _specimens("bf16", 256, 2, members=64, limited=True),
        _specimens("fp32", 128, 4),
        _specimens("bf16", 128, 4, block=32),
        _specimens("bf16", 128, 4, block=64),
        _specimens("bf16", 128, 4, block=64, members=64, capabilities=HOPPER),
        _specimens("fp16", 128, 7, block=64, limited=True, capabilities=HOPPER),
        _specimens("bf16", 64, 8, block=64, capabilities=HOPPER),
        _specimens("bf16", 80, 1, block=64, capabilities=HOPPER),
        _specimens("bf16", 256, 2, block=64, limited=True, capabilities=HOPPER),
        _specimens("fp32", 128, 4, block=64, capabilities=HOPPER),
        _specimens("bf16", 128, 4, stored="i8"),
        _specimens("bf16", 128, 4, members=64, capabilities=AMPERE, stored="u8"),
        _specimens("bf16", 128, 4, members=64, capabilities=CONVERTING, stored="fp8e4nv"),
        _specimens("fp16", 64, 8, limited=True, capabilities=HOPPER, stored="fp8e4nv"),
        _specimens("bf16", 80, 1, members=64, capabilities=HOPPER, stored="i8"),
        _specimens("bf16", 64, 8, has_sinks=True),
        _specimens("bf16", 64, 8, limited=True, has_sinks=True),
        _specimens("bf16", 64, 8, members=64, limited=True, has_sinks=True),
        _specimens("bf16", 64, 8, members=64, has_sinks=True, capabilities=HOPPER, stored="i8"),
    )
)
