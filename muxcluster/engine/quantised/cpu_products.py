"""Products of quantised weights on CPUs: by our C++ kernels, else by those that torch has for them.

Uses private operators of torch; where one is missing or wrong, `QuantisedLinear` stays.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from muxcluster.engine.quantised.linear import FastLinear, QuantisedLinear, rounded
from muxcluster.engine.quantised.panel_linear import can_read, panel_linear
from muxcluster.engine.quantised.rows import filled, filled_rows
from muxcluster.engine.quantised.weight import QuantisedWeight, packed
from muxcluster.kernels.products.quantised_product import MIDDLE, unpacked

_GROUPS = (32, 64, 128, 256)  # inputs that share a scale, as torch's kernel has them
_INT4_TOLERANCE = 0.02  # of the largest result, in 16 bits
_ROWS = 16  # its outputs are a multiple of these


class Int8Linear(FastLinear):
    """int8 weights with a scale a row, inputs rounded to 8 bits (oneDNN's quantised linear)."""

    def __init__(self, linear: QuantisedLinear, multiply: "Int8Product") -> None:
        super().__init__()
        weight = linear.quantised
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.onednn.qlinear_prepack(weight.values, None)
        self.scales = weight.scales[:, 0].contiguous()
        self.zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self.bias = linear.bias
        self._multiply = multiply

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        flat = inputs.reshape(-1, self.in_features)
        num_rows = len(flat)
        if filled_rows(num_rows) != num_rows:
            flat = filled(flat, filled_rows(num_rows))
        values, scales = rounded(flat)
        output = self._multiply(values, self.packed, self.scales, self.zeros)
        output = output.mul_(scales)[:num_rows]
        if self.bias is not None:
            output.add_(self.bias)
        return output.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)


class Int4Linear(FastLinear):
    """4-bit weights in groups; the inputs stay as they are (torch's weight-only product)."""

    def __init__(self, linear: QuantisedLinear) -> None:
        super().__init__()
        weight = linear.quantised
        self.out_features, self.in_features = weight.shape
        self.group = weight.group
        self.order = weight.order
        values = unpacked(weight.values).to(torch.int32)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
        zeros = weight.zeros
        offsets = torch.zeros_like(weight.scales) if zeros is None else MIDDLE - zeros
        pairs = torch.stack((weight.scales, offsets * weight.scales), dim=-1)
        # [groups, out, 2]: an element is (value - 8) * scale + offset
        self.scales_and_offsets = pairs.transpose(0, 1).contiguous().to(linear.dtype)
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        if self.order is not None:
            inputs = inputs[..., self.order]
        flat = inputs.reshape(-1, self.in_features)
        output: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self.packed, self.group, self.scales_and_offsets
        )
        if self.bias is not None:
            output.add_(self.bias)
        return output.view(*inputs.shape[:-1], self.out_features)


def fast_linear(linear: QuantisedLinear) -> QuantisedLinear | FastLinear:
    """Return a layer that computes the same faster; `linear` itself if there is none."""
    if linear.rounds_inputs:
        multiply = int8_product()
        has_one_scale = linear.scales.shape[1] == 1 and linear.zeros is None
        fits = multiply is not None and has_one_scale and linear.order is None
        # on processors with VNNI whole numbers are multiplied faster than any in fp32
        if multiply is not None and fits and (multiply is _at_once or not can_read(linear.dtype)):
            return Int8Linear(linear, multiply)
    if can_read(linear.dtype):
        return panel_linear(linear)
    if linear.rounds_inputs:
        return linear
    # torch's product for inputs in fp32 is a plain loop, 20 times slower than making it dense
    fits = linear.group in _GROUPS and linear.out_features % _ROWS == 0
    is_packed = linear.quantised.is_packed and linear.dtype != torch.float32
    return Int4Linear(linear) if fits and is_packed and int4_is_right(linear.dtype) else linear


# Of whole numbers fp32 [rows, in], -127 to 127, a packed weight, its scales and zeros: fp32
# [rows, out].
Int8Product = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@lru_cache
@torch.no_grad()
def int8_product() -> Int8Product | None:
    """Return the faster of oneDNN's products of int8 that are exact here, None: neither is."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-127, 128, (5, 48), generator=generator)
    weight = torch.randint(-127, 128, (32, 48), generator=generator)
    values[0] = values[1] = 127
    values[1, ::2] = -127
    weight[0], weight[1] = 127, -127
    expected = (values @ weight.T).double()
    for product in (_at_once, _in_halves):
        try:
            ready = torch.ops.onednn.qlinear_prepack(weight.to(torch.int8), None)
            zeros = torch.zeros(32, dtype=torch.int32)
            found = product(values.float(), ready, torch.ones(32), zeros)
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
        except (RuntimeError, AttributeError, AssertionError):
            continue
        return product
    return None


def _at_once(values: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """For processors that add products of 8 bits in 32 (VNNI)."""
    return _qlinear((values + 128).to(torch.uint8), 128, weight, scales, zeros)


def _in_halves(values: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """For processors that add pairs of products in 16 bits, where they may overflow (AVX2).

    Each input is the sum of two of 7 bits, in rows of their own: weights are read once for both.
    """
    shifted = (values + 128).to(torch.uint8)
    half = shifted >> 1
    both = _qlinear(torch.cat((half, shifted - half)), 64, weight, scales, zeros)
    return both[: len(values)] + both[len(values) :]


def _qlinear(inputs: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Return fp32 [rows, out] of uint8 [rows, in], whose elements mean `zero` less."""
    output: Tensor = torch.ops.onednn.qlinear_pointwise(
        inputs, 1.0, zero, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return output


@lru_cache
@torch.no_grad()
def int4_is_right(dtype: torch.dtype) -> bool:
    """Return whether torch's product of 4-bit weights is that of the dense weight here."""
    generator = torch.Generator().manual_seed(0)
    values = packed(torch.randint(0, 16, (32, 64), generator=generator))
    scales = torch.rand((32, 2), generator=generator) + 0.5
    zeros = torch.randint(0, 16, (32, 2), generator=generator).float()
    weight = QuantisedWeight(values, scales, zeros, 32)
    inputs = torch.randn((3, 64), generator=generator).to(dtype)
    plain = QuantisedLinear(weight, None, dtype, rounds_inputs=False)
    try:
        expected = plain(inputs)
        largest = float(expected.abs().max())
        difference = (Int4Linear(plain)(inputs) - expected).abs().max()
        assert float(difference) < _INT4_TOLERANCE * largest
    except (RuntimeError, AttributeError, AssertionError):
        return False
    return True
