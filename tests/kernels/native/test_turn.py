"""Rotary embedding in C++: pairs of elements times complex numbers."""

import pytest
import torch

from muxcluster.kernels.native.attention import turn
from tests.kernels.native.switch import has_native


@pytest.mark.parametrize("head_dim", [2, 64, 80])
def test_some_heads_of_each_token_are_turned_in_place(head_dim: int) -> None:
    if not has_native():
        pytest.skip("no C++ compiler here")
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(7, 6, head_dim, generator=generator)
    angles = torch.rand(7, 1, head_dim // 2, generator=generator) * 6
    turns = torch.polar(torch.ones_like(angles), angles)
    expected = whole.double().clone()
    pairs = torch.view_as_complex(whole[:, :4].double().reshape(7, 4, -1, 2).contiguous())
    expected[:, :4] = torch.view_as_real(pairs * turns.to(torch.complex128)).flatten(2)
    turn(whole[:, :4], turns)
    torch.testing.assert_close(whole.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(whole[:, 4:].double(), expected[:, 4:])
