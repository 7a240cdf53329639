"""Keys and values in 8 bits, as `kernels.layout` describes them: rounding, and reading them back.

The type of a pointer says the format: int8 with a scale behind each slot's elements, uint8 for the
bits of e4m3 numbers, float8e4nv for those that the GPU converts itself, anything else for numbers
as they are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.triton_ops.parts.prefill_tiling import capability
from muxcluster.kernels.triton_ops.parts.tiles import tile_pointers

LEAST_SCALED = tl.constexpr(1e-30)  # as in `kernels.layout`
INFINITY = tl.constexpr(float("inf"))


def readable(halves: Tensor) -> Tensor:
    """Return the view from `half_rows` as kernels that read it take it.

    From Hopper on the GPU converts e4m3 numbers: with integers that takes ten times as many
    instructions as the rest of a decode kernel (bench/compile_kernels.py).
    """
    if halves.dtype == torch.uint8 and halves.is_cuda and capability(halves.device) >= 9:
        return halves.view(torch.float8_e4m3fn)
    return halves


@triton.jit
def store_numbers(at, scales_at, numbers, inside, is_item):
    """Store keys or values [items, BLOCK_D] where `inside`, in the format of pointers `at`.

    scales_at: int8 pointers [items] behind the elements, used for int8 where `is_item`.
    """
    if at.dtype.element_ty == tl.int8:
        elements, scales = int8_of(tl.where(inside, numbers, 0.0))
        tl.store(at, elements, mask=inside)
        tl.store(scales_at.to(tl.pointer_type(tl.float32)), scales, mask=is_item)
    elif at.dtype.element_ty == tl.uint8:
        tl.store(at, e4m3_of(numbers), mask=inside)
    else:
        tl.store(at, numbers, mask=inside)


@triton.jit
def load_numbers(at, mask, like):
    """Load keys or values where `mask`, 0 elsewhere; of 8 bits in the type of `like`, unscaled."""
    if at.dtype.element_ty == tl.int8:
        return tl.load(at, mask=mask, other=0).to(like.dtype)
    elif at.dtype.element_ty == tl.uint8:
        return e4m3_numbers(tl.load(at, mask=mask, other=0)).to(like.dtype)
    elif at.dtype.element_ty == tl.float8e4nv:
        return tl.load(at, mask=mask, other=0.0).to(like.dtype)
    else:
        return tl.load(at, mask=mask, other=0.0)


@triton.jit
def scale_pointers(
    keys,
    block,
    start,
    tokens,
    seen,
    HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Pointers [TILE] to the scales of a tile's keys; those of the values are HALF elements on.

    Arguments as of `tile_pointers`. Nothing of use where the format has no scales.
    """
    if keys.pool.dtype.element_ty == tl.int8:
        at = tile_pointers(keys, block, start, tokens, seen, HALF, BLOCK_TOKENS, TILE, HEAD_DIM, 1)
        return tl.reshape(at + HEAD_DIM, [TILE])
    else:
        return keys.pool


@triton.jit
def times_scales(numbers, scales_at, seen):
    """numbers [rows, TILE], column i times the scale of token i; unchanged in other formats."""
    if scales_at.dtype.element_ty == tl.int8:
        scales = tl.load(scales_at.to(tl.pointer_type(tl.float32)), mask=seen, other=0.0)
        return numbers * scales[None, :]
    else:
        return numbers


@triton.jit
def int8_of(numbers):
    """int8 elements of the shape of numbers [items, BLOCK_D], and scales fp32 [items].

    The scale of an item that holds NaN or infinity is infinity.
    """
    wide = numbers.to(tl.float32)
    size = tl.where(wide == wide, tl.abs(wide), INFINITY)
    largest = tl.max(size, 1)
    factor = 127 / tl.maximum(largest, LEAST_SCALED)
    elements = tl.where(size < INFINITY, wide, 0.0) * factor[:, None]
    return tl.floor(elements + 0.5).to(tl.int8), largest / 127


@triton.jit
def e4m3_of(numbers):
    """The nearest e4m3 numbers, as uint8 bits: even ones in the middle, beyond 448 that, NaN for
    what is not finite.

    Written with integers: sm_80 has no such type, nor the interpreter its rounding.
    """
    wide = numbers.to(tl.float32)
    size = tl.minimum(tl.abs(wide), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # below 2^-6 steps are 2^-9, as those of fp32 are at 2^14
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    found = tl.where(size < 0.015625, small, normal)
    found = tl.where(tl.abs(wide) < INFINITY, found, 0x7F)
    sign = (wide.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (found | sign).to(tl.uint8)


@triton.jit
def e4m3_numbers(bits):
    """fp16 numbers of uint8 bits of e4m3, exact."""
    wide = bits.to(tl.uint16)
    shifted = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    # fp16 has a bias of 15 where e4m3 has 7
    numbers = shifted.to(tl.float16, bitcast=True) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), numbers)
