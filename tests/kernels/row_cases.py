"""What RMSNorm, rotary and gated activations should give, in float64, and tensors to give them."""

import torch
from torch import Tensor


def norm_expected(
    hidden: Tensor, weight: Tensor, eps: float, residual: Tensor | None, gemma: bool
) -> tuple[Tensor, Tensor]:
    """(normed, sum) in float64 but for the roundings to hidden's type that transformers makes."""
    dtype = hidden.dtype
    total = hidden if residual is None else (hidden.double() + residual.double()).to(dtype)
    root = (total.double().square().sum(-1, keepdim=True) / hidden.shape[-1] + eps).sqrt()
    normed = total.double() / root
    if gemma:
        return normed * (weight.double() + 1), total
    return normed.to(dtype).double() * weight.double(), total


def heads_normed(tensor: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Heads [tokens, heads, head_dim] after their norm, rounded to their type."""
    normed, _ = norm_expected(tensor.flatten(0, 1), weight, eps, None, False)
    return normed.to(tensor.dtype).view(tensor.shape)


def rotary_expected(tensor: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Pairs as complex numbers, multiplied by their angle; float64 [tokens, heads, head_dim]."""
    pairs = cos.shape[1] // 2
    angles = torch.complex(cos[:, :pairs].double(), sin[:, :pairs].double())
    out = tensor.double()
    part = out[..., : 2 * pairs]
    if interleaved:
        turned = torch.view_as_complex(part.unflatten(-1, (pairs, 2)).contiguous())
        part.copy_(torch.view_as_real(turned * angles[:, None]).flatten(-2))
    else:
        turned = torch.complex(part[..., :pairs], part[..., pairs:]) * angles[:, None]
        part.copy_(torch.cat((turned.real, turned.imag), dim=-1))
    return out


def glu_expected(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """float64 but for the activation's rounding to gate's type."""
    x = gate.double()
    if activation == "silu":
        active = x / (1 + torch.exp(-x))
    else:
        active = x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return active.to(gate.dtype).double() * up.double()


def assert_rounded(actual: Tensor, expected: Tensor) -> None:
    """`actual` is the float64 `expected` rounded to its type, but for fp32 arithmetic before that:
    nowhere further than two roundings, and nearly everywhere exact in 16 bits."""
    assert actual.shape == expected.shape
    rounded = expected.to(actual.dtype)
    if actual.dtype == torch.float32:
        torch.testing.assert_close(actual, rounded, rtol=2e-6, atol=2e-6)
        return
    ulp = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, rounded, rtol=2 * ulp, atol=1e-6)
    assert int((actual != rounded).sum()) <= max(2, 0.02 * actual.numel())


def surrounded(shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Random [rows, ..., width] inside a larger buffer of NaN, which no kernel may read or write.

    The buffer is the view's `_base`.
    """
    buffer = torch.full((shape[0] + 2, *shape[1:-1], shape[-1] + 3), float("nan"), dtype=dtype)
    inside = buffer[1:-1, ..., 2:-1]
    inside.copy_(scale * torch.randn(shape))
    return inside


def assert_surroundings_untouched(inside: Tensor) -> None:
    """Nothing was written outside a tensor made by `surrounded`."""
    buffer = inside._base
    assert buffer is not None
    assert not inside.isnan().any()
    assert int(buffer.isnan().sum()) == buffer.numel() - inside.numel()
