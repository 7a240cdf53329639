"""The Triton add_rms_norm, interpreted, against float64."""

import pytest
import torch

from muxcluster.kernels.triton_ops.add_rms_norm import add_rms_norm
from tests.kernels.row_cases import (
    assert_rounded,
    assert_surroundings_untouched,
    norm_expected,
    surrounded,
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("width", [1, 63, 64, 65, 1000])
def test_against_float64(width, with_residual, gemma, dtype):
    for num_rows in (1, 31, 32, 33) if width < 65 else (1, 2, 3):
        hidden, residual = (
            surrounded((num_rows, width), dtype),
            surrounded((num_rows, width), dtype),
        )
        weight = torch.randn(width).to(dtype)
        added = residual if with_residual else None
        before = hidden.clone()
        expected, total = norm_expected(hidden, weight, 1e-5, added, gemma)
        normed = add_rms_norm(hidden, weight, 1e-5, added, gemma)
        assert_rounded(normed, expected)
        assert torch.equal(hidden, before)
        if with_residual:
            assert torch.equal(residual, total)
        assert_surroundings_untouched(residual)


@pytest.mark.parametrize("gemma", [False, True])
def test_rounding_order_is_that_of_the_flavour(gemma):
    """The other flavour's order would differ in far more elements than assert_rounded lets pass."""
    hidden, weight = torch.randn(8, 512).half(), torch.randn(512).half()
    expected, _ = norm_expected(hidden, weight, 1e-5, None, gemma)
    normed = add_rms_norm(hidden, weight, 1e-5, None, gemma)
    assert_rounded(normed, expected)
    if gemma:
        other, _ = norm_expected(hidden, weight + 1, 1e-5, None, False)
    else:
        other, _ = norm_expected(hidden, weight - 1, 1e-5, None, True)
    assert (normed != other.half()).float().mean() > 0.1


def test_no_rows_and_too_wide():
    assert add_rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
    with pytest.raises(ValueError, match="at most 32768"):
        add_rms_norm(torch.ones(1, 32769), torch.ones(32769), 1e-6)
    with pytest.raises(ValueError, match="residual must be"):
        add_rms_norm(torch.ones(1, 4), torch.ones(4), 1e-6, torch.ones(2, 4))
