"""The product with experts in MXFP4 on CPUs, in C++ and in torch, against float64."""

import pytest
import torch

from muxcluster.kernels.products import mxfp4_product as module
from muxcluster.kernels.products.mxfp4_product import mxfp4_product, widened
from tests.kernels.mxfp4_cases import ELEMENTS, assert_product, experts
from tests.kernels.native.switch import without_native


@pytest.fixture(autouse=True, params=["C++", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C++, and as without a compiler."""
    without_native(request.param == "torch", monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offsets", [[0, 3, 3, 7], [0, 0, 0, 1], [0, 40, 41, 41], [0, 16, 33, 35]])
def test_against_float64(offsets: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = experts(3, 24, 96)
    inputs = torch.randn(offsets[-1], 96).to(dtype)
    found = mxfp4_product(inputs, *weights[:2], torch.tensor(offsets))
    assert_product(found, inputs, weights, offsets)


def test_a_few_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ELEMENTS", 5 * 64)
    torch.manual_seed(0)
    weights, inputs = experts(2, 23, 64), torch.randn(29, 64)
    found = mxfp4_product(inputs, *weights[:2], torch.tensor([0, 4, 29]))
    assert_product(found, inputs, weights, [0, 4, 29])


def test_every_element_and_every_scale() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | (codes << 4)).expand(256, 16).contiguous()
    found = widened(blocks, torch.arange(256, dtype=torch.uint8).view(256, 1))
    elements = torch.tensor(ELEMENTS, dtype=torch.float64).repeat_interleave(2)
    for exponent in range(255):
        expected = (elements * 2.0 ** (exponent - 127)).float()
        assert torch.equal(found[exponent], expected), exponent
    assert found[255].isnan().all()


def test_refused() -> None:
    blocks, scales, _ = experts(2, 8, 64)
    inputs, offsets = torch.ones(3, 64), torch.tensor([0, 1, 3])
    mxfp4_product(inputs, blocks, scales, offsets)
    for arguments, message in (
        ((inputs.long(), blocks, scales, offsets), "inputs must be"),
        ((inputs[:, :48].contiguous(), blocks, scales, offsets), "multiple of 32"),
        ((inputs, blocks.char(), scales, offsets), "blocks must be"),
        ((inputs, blocks[:, ::2], scales[:, ::2], offsets), "blocks must be"),
        ((inputs, blocks, scales.short(), offsets), "scales must be"),
        ((inputs, blocks, scales[:, :4].contiguous(), offsets), "and scales"),
        ((inputs, blocks, scales, offsets[:2]), "offsets must be"),
        ((inputs, blocks, scales, offsets.int()), "offsets must be"),
    ):
        with pytest.raises(ValueError, match=message):
            mxfp4_product(*arguments)
