"""Product with a quantised weight: a program does a tile of rows and outputs over all inputs.

Weights are read in their few bits and widened in registers. Each step multiplies inputs of one
group, so that scales multiply sums and not elements.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.products.quantised_product import MIDDLE, check_quantised
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_INT8, _FP8, _INT4 = 0, 1, 2
_KINDS = {torch.int8: _INT8, torch.float8_e4m3fn: _FP8, torch.uint8: _INT4}
_MOST_STEP = 128  # inputs at once
_NUM_STAGES = 3  # of loads that run ahead of the products
_ROWS = (16, 32, 64)  # of a tile, the least that hold all rows
_OUTPUTS = {16: 32, 32: 64, 64: 64}  # of a tile, by its rows: few rows need many programs


@triton.jit
def _wide(values, KIND: tl.constexpr):
    """Return fp32 of int8, or of the bits of float8_e4m3fn."""
    if KIND == 1:
        # As the bits of fp16, whose exponents are 8 larger; not all GPUs can convert.
        bits = values.to(tl.int16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return values.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _quantised_product(
    product,  # [rows, outputs]
    inputs,  # [rows, inputs]
    values,  # [outputs, inputs], of 4 bits [outputs, inputs / 2]
    scales,  # fp32 [outputs, inputs / group]
    zeros,  # fp32 [outputs, inputs / group]
    num_rows,
    num_outputs,
    num_inputs,
    group,
    product_stride,
    input_stride,
    KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    MIDDLE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    has_row = (row < num_rows)[:, None]
    has_output = output < num_outputs
    dtype = product.dtype.element_ty
    input_row = inputs + row.to(tl.int64)[:, None] * input_stride
    scale_row = output.to(tl.int64) * (num_inputs // group)
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for first in range(0, num_inputs, STEP):
        place = scale_row + first // group
        scale = tl.load(scales + place, mask=has_output, other=0.0)
        zero = tl.full((OUTPUTS,), MIDDLE, dtype=tl.float32)
        if HAS_ZEROS:
            zero = tl.load(zeros + place, mask=has_output, other=0.0)
        if KIND == 2:
            byte = tl.arange(0, STEP // 2)
            value_row = values + output.to(tl.int64)[:, None] * (num_inputs // 2) + first // 2
            both = tl.load(value_row + byte[None, :], mask=has_output[:, None], other=0)
            low = (both & 15).to(tl.float32) - zero[:, None]
            high = (both >> 4).to(tl.float32) - zero[:, None]
            even = tl.load(input_row + first + 2 * byte[None, :], mask=has_row, other=0.0)
            odd = tl.load(input_row + first + 2 * byte[None, :] + 1, mask=has_row, other=0.0)
            part = tl.dot(even, tl.trans(low.to(dtype)), input_precision="ieee")
            part = tl.dot(odd, tl.trans(high.to(dtype)), part, input_precision="ieee")
        else:
            column = tl.arange(0, STEP)
            value_row = values + output.to(tl.int64)[:, None] * num_inputs + first
            few = tl.load(value_row + column[None, :], mask=has_output[:, None], other=0)
            wide = _wide(few, KIND) - zero[:, None]
            x = tl.load(input_row + first + column[None, :], mask=has_row, other=0.0)
            part = tl.dot(x, tl.trans(wide.to(dtype)), input_precision="ieee")
        total += part * scale[None, :]
    here = product + row.to(tl.int64)[:, None] * product_stride + output[None, :]
    tl.store(here, total.to(dtype), mask=has_row & has_output[None, :])


def quantised_product(
    inputs: Tensor, values: Tensor, scales: Tensor, zeros: Tensor | None, group: int
) -> Tensor:
    """As `muxcluster.kernels.products.quantised_product.quantised_product`."""
    check_quantised(inputs, values, scales, zeros, group)
    (num_rows, num_inputs), num_outputs = inputs.shape, len(values)
    product = torch.empty((num_rows, num_outputs), dtype=inputs.dtype, device=inputs.device)
    if not num_rows:
        return product
    kind = _KINDS[values.dtype]
    rows = next((each for each in _ROWS if num_rows <= each), _ROWS[-1])
    outputs = _OUTPUTS[rows]
    _quantised_product[(triton.cdiv(num_rows, rows), triton.cdiv(num_outputs, outputs))](
        product,
        inputs,
        values.view(torch.uint8) if kind == _FP8 else values,
        scales,
        scales if zeros is None else zeros,
        num_rows,
        num_outputs,
        num_inputs,
        group,
        product.stride(0),
        inputs.stride(0),
        KIND=kind,
        HAS_ZEROS=zeros is not None,
        MIDDLE=MIDDLE if kind == _INT4 else 0,
        ROWS=rows,
        OUTPUTS=outputs,
        STEP=min(_MOST_STEP, group & -group),
        num_stages=_NUM_STAGES,
    )
    return product


def _specimen(name: str, kind: int, dtype: str, rows: int, has_zeros: bool) -> Specimen:
    integers = ("num_outputs", "num_inputs", "group", "product_stride", "input_stride")
    constants = {
        "KIND": kind,
        "HAS_ZEROS": has_zeros,
        "MIDDLE": MIDDLE if kind == _INT4 else 0,
        "ROWS": rows,
        "OUTPUTS": _OUTPUTS[rows],
        "STEP": _MOST_STEP,
    }
    return Specimen(
        name=f"quantised_product {name}",
        kernel=_quantised_product,
        signature={
            "product": f"*{dtype}",
            "inputs": f"*{dtype}",
            "values": "*i8" if kind == _INT8 else "*u8",
            "scales": "*fp32",
            "zeros": "*fp32",
            "num_rows": "i32",
            **dict.fromkeys(integers, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        constants=constants,
        divisible=frozenset(("product", "inputs", "values", "scales", "zeros", *integers)),
        num_stages=_NUM_STAGES,
    )


SPECIMENS = (
    _specimen("int4 bf16 16 rows", _INT4, "bf16", 16, True),
    _specimen("int4 fp16 64 rows", _INT4, "fp16", 64, False),
    _specimen("int8 bf16 16 rows", _INT8, "bf16", 16, False),
    _specimen("fp8 bf16 16 rows", _FP8, "bf16", 16, False),
    _specimen("fp8 bf16 64 rows", _FP8, "bf16", 64, False),
)
