"""Quantises an ordinary weight when it is loaded (`models[].quantize`)."""

from math import gcd

import torch
from torch import Tensor

from muxcluster.engine.quantised.weight import QuantisedWeight, joined, packed
from muxcluster.placement.shapes.weight_format import WeightFormat

_MOST_INT8 = 127
_MOST_INT4 = 15
_MOST_FP8 = 448.0  # of float8_e4m3
_LEAST_SCALE = 1e-12  # of a row of zeros
# Of a weight in fp32, at a time: an output layer of 128,000 tokens would take gigabytes.
_MOST_ELEMENTS = 2**25


def quantised(weight: Tensor, form: WeightFormat) -> QuantisedWeight:
    """Return `weight` [out, in], rounded to the nearest element of `form`.

    int8 and fp8: a scale a row, so that the largest element is the largest value. int4: scale and
    zero point for every group of inputs, so that its range is that of the values; groups of the
    largest size up to `form.group` that divides the inputs.
    """
    num_rows = max(1, _MOST_ELEMENTS // weight.shape[1])
    pieces = [_rounded(each.float(), form) for each in torch.split(weight, num_rows)]
    return pieces[0] if len(pieces) == 1 else joined(pieces)


def _rounded(exact: Tensor, form: WeightFormat) -> QuantisedWeight:
    if form.kind == "int4":
        return _int4(exact, gcd(form.group, exact.shape[1]))
    largest = exact.abs().amax(dim=1, keepdim=True)
    if form.kind == "int8":
        scales = (largest / _MOST_INT8).clamp_min(_LEAST_SCALE)
        values = (exact / scales).round().to(torch.int8)
    else:
        scales = (largest / _MOST_FP8).clamp_min(_LEAST_SCALE)
        values = (exact / scales).to(torch.float8_e4m3fn)
    return QuantisedWeight(values, scales, None, exact.shape[1])


def _int4(exact: Tensor, group: int) -> QuantisedWeight:
    num_out, num_in = exact.shape
    grouped = exact.view(num_out, -1, group)
    # a range that has zero, which stays exact
    low = grouped.amin(dim=-1).clamp_max(0.0)
    high = grouped.amax(dim=-1).clamp_min(0.0)
    scales = ((high - low) / _MOST_INT4).clamp_min(_LEAST_SCALE)
    zeros = (-low / scales).round()
    values = (grouped / scales.unsqueeze(-1)).round() + zeros.unsqueeze(-1)
    whole = values.clamp(0, _MOST_INT4).view(num_out, num_in)
    return QuantisedWeight(packed(whole), scales, zeros, group)
