"""add_rms_norm is bit for bit what transformers' modules compute, and close to float64."""

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from muxcluster.kernels.add_rms_norm import add_rms_norm
from tests.kernels.row_cases import assert_rounded, norm_expected

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("module", "gemma"), [(LlamaRMSNorm, False), (GemmaRMSNorm, True)])
def test_as_transformers(module, gemma, dtype):
    hidden, residual = torch.randn(2, 7, 96).to(dtype)
    norm = module(96, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.normal_()
        expected = norm(residual + hidden)
    total = residual + hidden
    before = hidden.clone()
    normed = add_rms_norm(hidden, norm.weight.detach(), 1e-5, residual, gemma)
    assert torch.equal(normed, expected)
    assert torch.equal(residual, total)
    assert torch.equal(hidden, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_against_float64(with_residual, gemma, dtype):
    hidden, residual = torch.randn(2, 5, 200).to(dtype)
    weight = torch.randn(200).to(dtype)
    added = residual if with_residual else None
    expected, total = norm_expected(hidden, weight, 1e-6, added, gemma)
    normed = add_rms_norm(hidden, weight, 1e-6, added, gemma)
    assert_rounded(normed, expected)
    if with_residual:
        assert_rounded(residual, total.double())


def test_no_rows():
    assert add_rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)


@pytest.mark.parametrize(
    ("hidden", "weight", "residual"),
    [
        (torch.ones(2, 3, 4), torch.ones(4), None),
        (torch.ones(2, 4).double(), torch.ones(4).double(), None),
        (torch.ones(4, 2).t(), torch.ones(4), None),
        (torch.ones(2, 4), torch.ones(5), None),
        (torch.ones(2, 4), torch.ones(4).half(), None),
        (torch.ones(2, 4), torch.ones(8)[::2], None),
        (torch.ones(2, 4), torch.ones(4), torch.ones(3, 4)),
        (torch.ones(2, 4), torch.ones(4), torch.ones(2, 4).half()),
    ],
)
def test_refused(hidden, weight, residual):
    with pytest.raises(ValueError, match="must be"):
        add_rms_norm(hidden, weight, 1e-6, residual)
