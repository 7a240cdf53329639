"""Block sizes and splits of prefix-shared attention, from shapes alone: no value is read."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from muxcluster.kernels.triton_ops.parts.splits import SPLIT_TOKENS, multiprocessors

TILES_IN_FLIGHT = 2  # Tiles of keys and values that a program waits for at a time
TILE_BYTES = 16384  # Keys read at once; as many bytes of values beside them
MAX_SPLITS = 16
MOST_QUERIES = 128  # Rows of the largest matrix product: two warp groups of 64 on sm_90
# A decode waits for memory, so a few idle rows cost it nothing; so many would.
MOST_DISTINCT_QUERIES = 64
# Programs wanted, so that ragged groups even out: about two run at a time.
PROGRAMS_PER_MULTIPROCESSOR = 4
MERGED_ELEMENTS = 1024  # Output elements of one program of the merge


@dataclass(frozen=True, slots=True)
class PrefixTiling:
    """Sizes of the tiles and numbers of the splits of one launch."""

    # prefix_queries, distinct_queries: rows (queries × their heads) of a tile of a group or row
    prefix_queries: int
    distinct_queries: int
    tile: int  # keys read at once. All three are powers of two of at least 16.
    # prefix_splits, distinct_splits: most parts a tile's keys are cut into
    prefix_splits: int
    distinct_splits: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class PrefixShape:
    """The shape of a call, as the host knows it."""

    tokens: int
    rows: int
    groups: int
    kv_heads: int
    group: int  # query heads a KV head
    head_dim: int
    single: bool  # one query a row

    def prefix_tiles(self, queries: int) -> int:
        """Return tiles that suffice however the tokens are divided among the groups."""
        return self.tokens // (queries // self.group) + self.groups

    def distinct_tiles(self, queries: int) -> int:
        """Return tiles that suffice however the tokens are divided among the rows."""
        return self.rows if self.single else self.tokens // (queries // self.group) + self.rows

    def programs(self, tiling: PrefixTiling) -> int:
        """Return the programs of the attention kernel: one per split, tile and KV head."""
        prefix = self.prefix_tiles(tiling.prefix_queries) * tiling.prefix_splits
        distinct = self.distinct_tiles(tiling.distinct_queries) * tiling.distinct_splits
        return (prefix + distinct) * self.kv_heads


def device_tiling(
    shape: PrefixShape, max_tokens: int, dtype: torch.dtype, device: torch.device
) -> PrefixTiling:
    """Return `choose_tiling` for the device and about these shapes; on CPU nothing is split."""
    # Counts are rounded to powers of two, those of groups down: few kernels are compiled, and which
    # ones can be told ahead.
    programs = 1
    shape = replace(
        shape,
        tokens=triton.next_power_of_2(shape.tokens),
        rows=triton.next_power_of_2(shape.rows),
        groups=1 << (shape.groups.bit_length() - 1),
    )
    if device.type == "cuda":
        programs = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(device)
    return choose_tiling(shape, max_tokens, dtype, programs)


def choose_tiling(
    shape: PrefixShape, max_tokens: int, dtype: torch.dtype, programs: int
) -> PrefixTiling:
    """Return tiles that hold a group or row of average size, and splits for so many programs.

    max_tokens: what a table row can hold.
    """
    head_bytes = triton.next_power_of_2(shape.head_dim) * dtype.itemsize
    # Accumulators of larger tiles would not stay in registers.
    most = MOST_QUERIES if head_bytes <= 256 else MOST_QUERIES // 2
    tile = max(16, min(128, TILE_BYTES // head_bytes))
    if dtype.itemsize > 2:
        # Without matrix units: products are as small as they can be.
        most, tile = 16, 32
    prefix = _queries(shape, shape.groups, most)
    # One size for both halves the code and its registers, while rows can bear it.
    distinct = prefix
    if prefix > MOST_DISTINCT_QUERIES:
        distinct = _queries(shape, shape.rows, MOST_DISTINCT_QUERIES)
    return PrefixTiling(
        prefix,
        distinct,
        tile if prefix < 64 else min(tile, 64),
        _splits(programs, shape.prefix_tiles(prefix) * shape.kv_heads, max_tokens),
        _splits(programs, shape.distinct_tiles(distinct) * shape.kv_heads, max_tokens),
        4 if prefix == 16 else 8,
    )


def _queries(shape: PrefixShape, owners: int, most: int) -> int:
    """Return rows of a tile for owners of average size; at least one query with all its heads."""
    average = triton.next_power_of_2(triton.cdiv(shape.tokens, owners) * shape.group)
    return max(16, triton.next_power_of_2(shape.group), min(most, average))


def _splits(programs: int, tiles: int, max_tokens: int) -> int:
    """Return a power of two, so that few kernels are compiled."""
    most = max(1, min(MAX_SPLITS, programs // tiles, max_tokens // SPLIT_TOKENS))
    return 1 << (most.bit_length() - 1)


def kernel_constants(shape: PrefixShape, tiling: PrefixTiling) -> dict[str, Any]:
    """Return constants of the attention kernel that follow from shape and tiling."""
    return {
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": triton.next_power_of_2(shape.head_dim),
        "TILE": tiling.tile,
        "MIN_TILES": triton.cdiv(SPLIT_TOKENS, tiling.tile),
        "PREFIX_QUERIES": tiling.prefix_queries,
        "PREFIX_SPLITS": tiling.prefix_splits,
        "DISTINCT_QUERIES": tiling.distinct_queries,
        "DISTINCT_SPLITS": tiling.distinct_splits,
        "IS_SINGLE": shape.single,
    }


def merge_constants(shape: PrefixShape, tiling: PrefixTiling, *, has_sinks: bool) -> dict[str, Any]:
    splits = tiling.prefix_splits + tiling.distinct_splits
    padded = triton.next_power_of_2(shape.head_dim)
    return {
        "HEAD_DIM": shape.head_dim,
        "BLOCK_D": padded,
        "ITEMS": max(1, MERGED_ELEMENTS // padded),
        "NUM_SPLITS": splits,
        "BLOCK_S": triton.next_power_of_2(splits),
        "HAS_SINKS": has_sinks,
    }
