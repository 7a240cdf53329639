"""The Triton product with quantised weights, interpreted, against float64."""

import pytest
import torch

from muxcluster.kernels.triton_ops.quantised_product import quantised_product
from tests.kernels.quantised_cases import KINDS, assert_product, quantised


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("group", [32, 96, 384])
@pytest.mark.parametrize("kind", KINDS)
def test_against_float64(kind: str, group: int) -> None:
    weight = quantised(kind, 72, 384, group)  # outputs that no tile divides
    for rows, dtype in ((1, torch.float32), (17, torch.float16), (70, torch.float32)):
        inputs = torch.randn(rows, 384).to(dtype)
        wide = torch.zeros(rows, 400, dtype=dtype)
        wide[:, :384] = inputs
        assert_product(quantised_product(wide[:, :384], *weight[:4]), inputs, weight)


def test_no_rows() -> None:
    weight = quantised("int4", 8, 64, 32)
    assert quantised_product(torch.empty(0, 64), *weight[:4]).shape == (0, 8)
