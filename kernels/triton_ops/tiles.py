"""What the attention kernels share: where a token lies in the pool, and the scores' scaling."""

import math

import triton
import triton.language as tl

LOG2E = math.log2(math.e)
"""Scores are kept in units of log 2, since exp2 is the exponential the hardware has."""


@triton.jit
def key_places(
    table,
    tokens,
    seen,
    from_right,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Elements int64 [tokens] from the pool's start to each token's key; its value is HALF on.

    table: int32, one sequence's blocks of one KV head. tokens: int32 positions; those not `seen`
    (bool) get a place inside the first block. HALF: elements of half a block.
    """
    blocks = tl.load(table + tokens // BLOCK_TOKENS, mask=seen, other=0)
    offsets = tokens % BLOCK_TOKENS
    offsets = tl.where(from_right, BLOCK_TOKENS - 1 - offsets, offsets)
    return blocks.to(tl.int64) * (2 * HALF) + offsets * HEAD_DIM


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
    """What kernels take as scale and soft_cap.

    scale: the scores' factor times log2(e), over the cap where there is one. soft_cap: times
    log2(e); it is then the factor of what `capped` returns.
    """
    if soft_cap is None:
        return scale * LOG2E, 0.0
    return scale * LOG2E / soft_cap, soft_cap * LOG2E
