"""What the attention kernels share: tiles of keys in the pool, and the scaling of scores.

A tile is TILE neighbouring tokens of a sequence. Where BLOCK_TOKENS is a multiple of TILE and tiles
begin at multiples of TILE, each lies in one block: it needs one block id and is one run of memory.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

# Arguments that follow from how long a model's sequences may be. No kernel is compiled anew for
# them: they are in no address that is read by more than one lane at a time.
TABLE_STRIDES = ("table_row_stride", "table_head_stride")

# Scores are kept in units of log 2, since exp2 is the exponential the hardware has.
LOG2E = math.log2(math.e)

SCALE_BYTES = tl.constexpr(4)  # of an int8 key or value, behind its elements


class Keys(NamedTuple):
    """Where one sequence's keys are read: blocks is int32, its table row of one KV head."""

    pool: Any
    blocks: Any
    from_right: Any


def is_in_block(block_tokens: int, tile: int) -> bool:
    """Return whether tiles of keys that begin at multiples of their size lie in one block each."""
    return block_tokens % tile == 0


def pipeline_stages(block_tokens: int, tile: int, tiles_in_flight: int) -> int:
    """Return stages of the loop over keys that keep so many tiles of keys and values in flight."""
    # A tile of several blocks loads its block ids a stage ahead, for which Triton doubles the
    # distance; the id of a tile in one block is loaded by hand, a turn ahead.
    if is_in_block(block_tokens, tile):
        return tiles_in_flight + 1
    return 2 * tiles_in_flight + 1


@triton.jit
def tile_order(from_right, TILE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """Tokens [TILE] of a tile, counted from its first one, in the order in which it is read.

    A tile in one block is read as it lies in memory: a sequence that fills its blocks from the
    right has its last token first there.
    """
    lanes = tl.arange(0, TILE)
    if BLOCK_TOKENS % TILE == 0:
        return tl.where(from_right, TILE - 1 - lanes, lanes)
    else:
        return lanes


@triton.jit
def tile_block(keys, start, end, TILE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """The block id of the tile that begins at `start`, to be loaded a turn before it is needed.

    0 where the tile begins at `end` or later, and where tiles span blocks: `tile_pointers` then
    loads the ids.
    """
    if BLOCK_TOKENS % TILE == 0:
        return tl.load(keys.blocks + start // BLOCK_TOKENS, mask=start < end, other=0)
    else:
        return start * 0


@triton.jit
def stored_tokens(tokens, start, end, from_right, TILE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """`tokens < end` of a tile's tokens [TILE]: `start` (below `end`) plus `tile_order`.

    Written such that, where the tile lies in one block, no register has to hold the order, which
    depends on the side.
    """
    if BLOCK_TOKENS % TILE == 0:
        left = end - start
        lanes = tl.arange(0, TILE) - tl.where(from_right, TILE - left, 0)
        return lanes.to(tl.uint32, bitcast=True) < left.to(tl.uint32, bitcast=True)
    else:
        return tokens < end


@triton.jit
def tile_pointers(
    keys,
    block,
    start,
    tokens,
    seen,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Pointers [TILE, BLOCK_D] to the keys of a tile's tokens; the values are HALF elements on.

    keys: Keys. block: what `tile_block` gave for the tile. start: the tile's first token; where
    BLOCK_TOKENS is a multiple of TILE, so must it be. tokens: `start` plus `tile_order`; those not
    `seen` (bool) get a place inside some block. HALF: elements of half a block.
    """
    places = tl.arange(0, BLOCK_D)[None, :]
    SLOT: tl.constexpr = HEAD_DIM + (SCALE_BYTES if keys.pool.dtype.element_ty == tl.int8 else 0)
    if BLOCK_TOKENS % TILE == 0:
        first = keys.pool + block.to(tl.int64) * (2 * HALF)
        if BLOCK_TOKENS > TILE:
            offset = start % BLOCK_TOKENS
            offset = tl.where(keys.from_right, BLOCK_TOKENS - TILE - offset, offset)
            first += offset * SLOT
        return first + (tl.arange(0, TILE)[:, None] * SLOT + places)
    else:
        blocks = tl.load(keys.blocks + tokens // BLOCK_TOKENS, mask=seen, other=0)
        offsets = tokens % BLOCK_TOKENS
        offsets = tl.where(keys.from_right, BLOCK_TOKENS - 1 - offsets, offsets)
        rows = blocks.to(tl.int64) * (2 * HALF) + offsets * SLOT
        return keys.pool + rows[:, None] + places


@triton.jit
def loaded_places(seen, BLOCK_D: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Mask of a tile [tokens, BLOCK_D]: head_dim 80 and 96 are padded to 128."""
    if BLOCK_D == HEAD_DIM:
        return seen[:, None]
    else:
        return seen[:, None] & (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]


@triton.jit
def capped(products, scale, HAS_CAP: tl.constexpr):
    """The products of queries and keys, or tanh(products * scale / log2(e)) where there is a cap.

    tanh is written with exp2, which neither overflows (the quotient goes to 0 or 2) nor needs a
    library that the interpreter lacks.
    """
    if HAS_CAP:
        return 1 - 2 / (tl.exp2(products * (2 * scale)) + 1)
    else:
        return products


@triton.jit
def scaled(products, scale, soft_cap, HAS_CAP: tl.constexpr):
    """Scores in units of log 2 of the products of queries and keys; see `score_factors`."""
    if HAS_CAP:
        return capped(products, scale, HAS_CAP) * soft_cap
    else:
        return products * scale


def score_factors(scale: float, soft_cap: float | None) -> tuple[float, float]:
    """Return scale and soft_cap as the kernels take them.

    scale: the scores' factor times log2(e), over the cap if there is one. soft_cap: times log2(e);
    it is then the factor of what `capped` returns.
    """
    if soft_cap is None:
        return scale * LOG2E, 0.0
    return scale * LOG2E / soft_cap, soft_cap * LOG2E
