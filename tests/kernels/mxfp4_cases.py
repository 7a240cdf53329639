"""Experts' weights in MXFP4 for tests of the product, and what comes out in float64."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# of a sign, two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0, 5.3.3)
ELEMENTS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
ELEMENTS += [-each for each in ELEMENTS]


class Experts(NamedTuple):
    """Arguments of the product, and the weights in float64 [experts, out, in]."""

    blocks: Tensor
    scales: Tensor
    exact: Tensor


def experts(num_experts: int, num_out: int, num_in: int) -> Experts:
    """Random elements, scales from 2 ** -9 to 2 ** 4, and the two least ones."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (num_experts, num_out, num_in))
    exponents = rng.integers(118, 132, (num_experts, num_out, num_in // 32))
    exponents[0, 0, 0], exponents[-1, -1, -1] = 0, 1
    exact = np.zeros(codes.shape)
    for place in np.ndindex(*codes.shape):
        exponent = int(exponents[(*place[:2], place[2] // 32)]) - 127
        exact[place] = ELEMENTS[codes[place]] * 2.0**exponent
    blocks = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return Experts(
        torch.from_numpy(blocks.astype(np.uint8)),
        torch.from_numpy(exponents.astype(np.uint8)),
        torch.from_numpy(exact),
    )


def assert_product(found: Tensor, inputs: Tensor, weights: Experts, offsets: list[int]) -> None:
    """The result is the exact one, but for its own rounding and that of sums in fp32."""
    eps = torch.finfo(found.dtype).eps
    assert found.shape == (len(inputs), weights.exact.shape[1])
    for expert, exact in enumerate(weights.exact):
        mine = slice(offsets[expert], offsets[expert + 1])
        expected = inputs[mine].double() @ exact.T
        largest = inputs[mine].double().abs() @ exact.abs().T
        bound = eps * expected.abs() + 2e-6 * largest + 1e-6
        assert ((found[mine].double() - expected).abs() <= bound).all(), expert
