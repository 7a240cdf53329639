"""The plain-torch product with quantised weights, against float64."""

import pytest
import torch

from muxcluster.kernels.products.quantised_product import quantised_product
from tests.kernels.quantised_cases import KINDS, assert_product, quantised


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [32, 96, 192])
@pytest.mark.parametrize("kind", KINDS)
def test_against_float64(kind: str, group: int, dtype: torch.dtype) -> None:
    weight = quantised(kind, 24, 192, group)
    inputs = torch.randn(5, 192).to(dtype)
    assert_product(quantised_product(inputs, *weight[:4]), inputs, weight)


def test_refused() -> None:
    values, scales, _, group, _ = quantised("int8", 8, 64, 32)
    inputs = torch.ones(2, 64)
    for arguments, message in (
        ((inputs.long(), values, scales, None, group), "inputs must be"),
        ((inputs, values.short(), scales, None, group), "values must be int8"),
        ((inputs, values, scales, None, 16), "multiple of 32"),
        ((inputs[:, :32], values, scales, None, group), "64 columns"),
        ((inputs, values, scales[:4], None, group), "scales must be"),
        ((inputs, values, scales, scales.double(), group), "zeros must be"),
        ((inputs, values[:, ::2].repeat(1, 2)[::2], scales[:4, :1], None, 64), "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            quantised_product(*arguments)
