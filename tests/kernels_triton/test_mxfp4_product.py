"""The Triton product with experts in MXFP4, interpreted, against float64."""

import pytest
import torch

from muxcluster.kernels.triton_ops.mxfp4_product import mxfp4_product
from tests.kernels.mxfp4_cases import assert_product, experts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "offsets", [[0, 3, 3, 7], [0, 0, 0, 1], [0, 16, 33, 33], [0, 5, 90, 140], [0, 0, 200, 201]]
)
def test_against_float64(offsets: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = experts(3, 72, 96)  # outputs that no tile divides
    wide = torch.randn(offsets[-1], 104).to(dtype)
    inputs = wide[:, :96]
    found = mxfp4_product(inputs, *weights[:2], torch.tensor(offsets))
    assert_product(found, inputs, weights, offsets)


def test_no_rows() -> None:
    blocks, scales, _ = experts(2, 8, 64)
    found = mxfp4_product(torch.empty(0, 64), blocks, scales, torch.zeros(3, dtype=torch.int64))
    assert found.shape == (0, 8)
