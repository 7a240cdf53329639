"""Products of rows sorted by expert with weights in MXFP4.

A program does a tile of one expert's rows and of outputs over all inputs; the device finds a tile's
expert as `paged_prefill` finds a tile's row. Weights are read in their 4 bits and widened in
registers. Each step multiplies inputs that share a scale, so that scales multiply sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.products.mxfp4_product import BLOCK, check_mxfp4
from muxcluster.kernels.triton_ops.paged_prefill import row_of_tile
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_NUM_STAGES = 3  # of loads that run ahead of the products
# Of a tile, whatever the rows, so that one kernel serves prompts and decodes and none is compiled
# while a unit serves.
_ROWS, _OUTPUTS = 32, 32
_CONSTANTS = {"ROWS": _ROWS, "OUTPUTS": _OUTPUTS, "STEP": BLOCK}


@triton.jit
def _wide(nibbles):
    """What elements of 4 bits (E2M1) stand for, fp32."""
    # as the bits of fp16, whose exponents are 14 larger
    bits = nibbles.to(tl.int16)
    half = ((bits & 8) << 12) | ((bits & 7) << 9)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def _power(scales):
    """What scales of 8 bits (E8M0) stand for, fp32."""
    exponents = scales.to(tl.int32)
    bits = tl.where(exponents == 0, 1 << 22, exponents << 23)  # the least has no normal number
    return tl.where(exponents == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_experts"])
def _mxfp4_product(
    product,  # [rows, outputs]
    inputs,  # [rows, inputs]
    blocks,  # uint8 [experts, outputs, inputs / 2]
    scales,  # uint8 [experts, outputs, inputs / 32]
    offsets,  # int64 [experts + 1]
    num_experts,
    num_outputs,
    num_inputs,
    product_stride,
    input_stride,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    tile = tl.program_id(0)
    expert = row_of_tile(offsets, num_experts, tile, ROWS)
    begin = tl.load(offsets + expert).to(tl.int32)
    count = tl.load(offsets + expert + 1).to(tl.int32) - begin
    skipped = (tile - begin // ROWS - expert) * ROWS
    if skipped >= count:
        return
    place = skipped + tl.arange(0, ROWS)
    has_row = (place < count)[:, None]
    row = (begin + place).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    has_output = output < num_outputs
    dtype = product.dtype.element_ty
    input_row = inputs + row[:, None] * input_stride
    weight_row = expert.to(tl.int64) * num_outputs + output
    block_row = blocks + weight_row[:, None] * (num_inputs // 2)
    scale_row = scales + weight_row * (num_inputs // STEP)
    byte = tl.arange(0, STEP // 2)[None, :]
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for first in range(0, num_inputs, STEP):
        both = tl.load(block_row + first // 2 + byte, mask=has_output[:, None], other=0)
        scale = tl.load(scale_row + first // STEP, mask=has_output, other=127)
        even = tl.load(input_row + first + 2 * byte, mask=has_row, other=0.0)
        odd = tl.load(input_row + first + 2 * byte + 1, mask=has_row, other=0.0)
        part = tl.dot(even, tl.trans(_wide(both & 15).to(dtype)), input_precision="ieee")
        part = tl.dot(odd, tl.trans(_wide(both >> 4).to(dtype)), part, input_precision="ieee")
        total += part * _power(scale)[None, :]
    here = product + row[:, None] * product_stride + output[None, :]
    tl.store(here, total.to(dtype), mask=has_row & has_output[None, :])


def mxfp4_product(inputs: Tensor, blocks: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """As `muxcluster.kernels.products.mxfp4_product.mxfp4_product`; offsets are not checked."""
    check_mxfp4(inputs, blocks, scales, offsets)
    (num_rows, num_inputs), (num_experts, num_outputs, _) = inputs.shape, blocks.shape
    product = torch.empty((num_rows, num_outputs), dtype=inputs.dtype, device=inputs.device)
    if not num_rows:
        return product
    _mxfp4_product[(num_rows // _ROWS + num_experts, triton.cdiv(num_outputs, _OUTPUTS))](
        product,
        inputs,
        blocks,
        scales,
        offsets,
        num_experts,
        num_outputs,
        num_inputs,
        product.stride(0),
        inputs.stride(0),
        **_CONSTANTS,
        num_stages=_NUM_STAGES,
    )
    return product


def _specimen(dtype: str) -> Specimen:
    integers = ("num_outputs", "num_inputs", "product_stride", "input_stride")
    return Specimen(
        name=f"mxfp4_product {dtype}",
        kernel=_mxfp4_product,
        signature={
            "product": f"*{dtype}",
            "inputs": f"*{dtype}",
            "blocks": "*u8",
            "scales": "*u8",
            "offsets": "*i64",
            "num_experts": "i32",
            **dict.fromkeys(integers, "i32"),
            **dict.fromkeys(_CONSTANTS, "constexpr"),
        },
        constants=_CONSTANTS,
        divisible=frozenset(("product", "inputs", "blocks", "scales", "offsets", *integers)),
        num_stages=_NUM_STAGES,
    )


SPECIMENS = (_specimen("bf16"), _specimen("fp16"), _specimen("fp32"))
