"""The Triton silu_mul, interpreted, against float64."""

import pytest
import torch

from muxcluster.kernels.triton_ops.silu_mul import silu_mul
from tests.kernels.row_cases import assert_rounded, glu_expected, surrounded

# exp of a large number is infinite on a GPU too, and gives the sigmoid 0 that is wanted.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [1, 100, 1023, 1024, 1025])
@pytest.mark.parametrize("tokens", [1, 3])
def test_against_float64(tokens, width, activation, dtype):
    gate, up = (surrounded((tokens, width), dtype, scale=3.0) for _ in range(2))
    expected = glu_expected(gate, up, activation)
    assert_rounded(silu_mul(gate, up, activation), expected)
    joint = surrounded((tokens, 2 * width), dtype)
    joint.copy_(torch.cat((gate, up), dim=1))
    assert_rounded(silu_mul(joint, activation=activation), expected)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_large_arguments_do_not_overflow(activation):
    gate = torch.tensor([[-60000.0, -100.0, -0.0, 100.0, 60000.0]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 100.0, 60000.0]])
    assert torch.equal(silu_mul(gate, torch.ones_like(gate), activation), expected)


def test_no_tokens_and_refused():
    assert silu_mul(torch.empty(0, 8)).shape == (0, 4)
    with pytest.raises(ValueError, match="even"):
        silu_mul(torch.ones(2, 3))
