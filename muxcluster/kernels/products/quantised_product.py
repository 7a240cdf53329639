"""Product of inputs with a quantised weight; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from muxcluster.kernels.on_gpu import triton_on_gpu
from muxcluster.kernels.rows import check_rows

MIDDLE = 8  # of 4 bits: the zero where none is given
_LEAST_STEP = 32  # inputs of a group that a kernel multiplies at once


@triton_on_gpu
def quantised_product(
    inputs: Tensor, values: Tensor, scales: Tensor, zeros: Tensor | None, group: int
) -> Tensor:
    """Return `inputs` times the transposed weight, whose elements are (value - zero) * scale.

    inputs: [rows, in]. values: int8 or float8_e4m3fn [out, in]; uint8 [out, in / 2] with two
    elements of 4 bits in a byte, that of the even input in the lower half.
    scales, zeros: fp32 [out, in / group], contiguous; zeros None: all MIDDLE for 4 bits, else 0.
    group: neighbouring inputs that share a scale, as `fits`.

    Returns a new [rows, out] of the inputs' type, accumulated in fp32 from exact values: nothing
    but the result is rounded. Raises ValueError for wrong shapes, types or strides.
    """
    check_quantised(inputs, values, scales, zeros, group)
    exact = unpacked(values).float().view(len(values), -1, group)
    if zeros is not None:
        exact = exact - zeros.unsqueeze(-1)
    elif values.dtype == torch.uint8:
        exact = exact - MIDDLE
    weight = (exact * scales.unsqueeze(-1)).view(len(values), -1)
    return linear(inputs.float(), weight).to(inputs.dtype)


def fits(group: int) -> bool:
    """Return whether kernels can take groups of this size: multiples of 32."""
    return group % _LEAST_STEP == 0


def unpacked(values: Tensor) -> Tensor:
    """Return one element a place, [out, in]; what is not packed is returned as it is."""
    if values.dtype != torch.uint8:
        return values
    return torch.stack((values & 15, values >> 4), dim=-1).flatten(-2)


def check_quantised(
    inputs: Tensor, values: Tensor, scales: Tensor, zeros: Tensor | None, group: int
) -> None:
    """Raise ValueError unless the arguments are what `quantised_product` says."""
    check_rows("inputs", inputs)
    if values.dtype not in (torch.int8, torch.float8_e4m3fn, torch.uint8):
        raise ValueError(f"values must be int8, float8_e4m3fn or uint8, got {values.dtype}")
    num_in = values.shape[1] * (2 if values.dtype == torch.uint8 else 1)
    if not fits(group) or num_in % group:
        raise ValueError(f"group must be a multiple of 32 that divides {num_in}, got {group}")
    if inputs.shape[1] != num_in:
        raise ValueError(f"inputs must have {num_in} columns, got {inputs.shape[1]}")
    shape = (len(values), num_in // group)
    for name, each in (("scales", scales), ("zeros", zeros)):
        if each is None:
            continue
        if each.dtype != torch.float32 or each.shape != shape or not each.is_contiguous():
            raise ValueError(f"{name} must be contiguous fp32 {shape}, got {tuple(each.shape)}")
    if not values.is_contiguous():
        raise ValueError("values must be contiguous")
