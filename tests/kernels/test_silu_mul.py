"""silu_mul computes what transformers' activations do, bit for bit, and is close to float64."""

import pytest
import torch
from transformers.activations import ACT2FN

from muxcluster.kernels.silu_mul import silu_mul
from tests.kernels.row_cases import assert_rounded, glu_expected

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = [("silu", "silu"), ("gelu_tanh", "gelu_pytorch_tanh")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activation", "theirs"), NAMES)
def test_as_transformers(activation, theirs, dtype):
    gate, up = (3 * torch.randn(2, 6, 50)).to(dtype)
    assert torch.equal(silu_mul(gate, up, activation), ACT2FN[theirs](gate) * up)
    joint = torch.cat((gate, up), 1)
    expected = ACT2FN[theirs](joint[:, :50]) * joint[:, 50:]
    assert torch.equal(silu_mul(joint, activation=activation), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_against_float64(activation, dtype):
    gate, up = (3 * torch.randn(2, 9, 70)).to(dtype)
    product, expected = silu_mul(gate, up, activation), glu_expected(gate, up, activation)
    if activation == "silu":
        assert_rounded(product, expected)
    else:  # torch's own GELU loses the last digits of 1 + tanh where that is near 0
        rtol = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(product.double(), expected, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("gate", "up", "activation"),
    [
        (torch.ones(2, 3), None, "silu"),
        (torch.ones(2, 4), torch.ones(2, 2), "silu"),
        (torch.ones(2, 4), torch.ones(2, 4).half(), "silu"),
        (torch.ones(2, 4).long(), None, "silu"),
        (torch.ones(4, 2).t(), None, "silu"),
        (torch.ones(2, 4), None, "gelu"),
    ],
)
def test_refused(gate, up, activation):
    with pytest.raises(ValueError, match="must be|need"):
        silu_mul(gate, up, activation)
