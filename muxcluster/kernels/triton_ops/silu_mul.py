"""Activation of the gate times the up projection: a program does one stretch of one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.silu_mul import Activation, gate_and_up
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_MAX_BLOCK = 1024  # Eight elements, one 16-byte access in 16 bits, for each of 128 threads


@triton.jit
def _silu_mul(
    product,  # [tokens, width]
    gate,  # [tokens, width]
    up,  # [tokens, width]
    width,
    product_stride,
    gate_stride,
    up_stride,
    GELU_TANH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    dtype = product.dtype.element_ty
    x = tl.load(gate + token * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + token * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    if GELU_TANH:
        # 0.5 * (1 + tanh(z)) is sigmoid(2z); twice sqrt(2 / pi) is 1.59577.
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        x = x * tl.sigmoid(x)
    x = x.to(dtype).to(tl.float32) * y
    tl.store(product + token * product_stride + column, x.to(dtype), mask=inside)


def silu_mul(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor:
    """As `muxcluster.kernels.silu_mul.silu_mul`."""
    gate, up = gate_and_up(gate, up, activation)
    tokens, width = gate.shape
    product = torch.empty((tokens, width), dtype=gate.dtype, device=gate.device)
    if not tokens:
        return product
    block = min(_MAX_BLOCK, triton.next_power_of_2(width))
    _silu_mul[(tokens, triton.cdiv(width, block))](
        product,
        gate,
        up,
        width,
        product.stride(0),
        gate.stride(0),
        up.stride(0),
        GELU_TANH=activation == "gelu_tanh",
        BLOCK=block,
    )
    return product


def _specimen(name: str, dtype: str, gelu_tanh: bool) -> Specimen:
    pointers = ("product", "gate", "up")
    integers = ("width", "product_stride", "gate_stride", "up_stride")
    return Specimen(
        name=f"silu_mul {name}",
        kernel=_silu_mul,
        signature={
            **dict.fromkeys(pointers, f"*{dtype}"),
            **dict.fromkeys(integers, "i32"),
            "GELU_TANH": "constexpr",
            "BLOCK": "constexpr",
        },
        constants={"GELU_TANH": gelu_tanh, "BLOCK": _MAX_BLOCK},
        divisible=frozenset((*pointers, *integers)),
    )


SPECIMENS = (
    _specimen("bf16", "bf16", False),
    _specimen("fp16", "fp16", False),
    _specimen("bf16 gelu_tanh", "bf16", True),
)
