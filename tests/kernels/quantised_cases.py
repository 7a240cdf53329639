"""Quantised weights for tests of the product, and what comes out in float64."""

from typing import NamedTuple

import torch
from torch import Tensor

KINDS = ("int8", "fp8", "int4", "int4-zeros", "int8-zeros")


class Quantised(NamedTuple):
    """Arguments of the product, and the weight in float64 [out, in]."""

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    group: int
    exact: Tensor


def quantised(kind: str, num_out: int, num_in: int, group: int) -> Quantised:
    """Every value of the format occurs if there is room for it."""
    scales = torch.rand(num_out, num_in // group) * 0.1 + 0.01
    zeros = None
    if kind.startswith("int4"):
        elements = torch.randint(0, 16, (num_out, num_in))
        values = (elements[:, 0::2] | (elements[:, 1::2] << 4)).to(torch.uint8)
        zero = torch.full_like(scales, 8.0)
    elif kind == "fp8":
        bits = torch.arange(num_out * num_in) % 256
        bits[bits % 128 == 127] = 0  # NaN
        values = bits.to(torch.uint8).view(torch.float8_e4m3fn).view(num_out, num_in)
        elements, zero = values.double(), torch.zeros_like(scales)
    else:
        elements = torch.randint(-128, 128, (num_out, num_in))
        values, zero = elements.to(torch.int8), torch.zeros_like(scales)
    if kind.endswith("zeros"):
        zeros = zero = torch.randint(0, 16, scales.shape).float()
    grouped = elements.double().view(num_out, -1, group)
    exact = (grouped - zero.double().unsqueeze(-1)) * scales.double().unsqueeze(-1)
    return Quantised(values, scales, zeros, group, exact.view(num_out, num_in))


def assert_product(found: Tensor, inputs: Tensor, weight: Quantised) -> None:
    """The result is the exact one, but for its own rounding and that of sums in fp32."""
    expected = inputs.double() @ weight.exact.T
    largest = inputs.double().abs() @ weight.exact.abs().T
    eps = torch.finfo(found.dtype).eps
    bound = eps * expected.abs() + 2e-6 * largest + 1e-6
    assert ((found.double() - expected).abs() <= bound).all()
