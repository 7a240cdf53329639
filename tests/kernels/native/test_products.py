"""C++ products against float64, for every kind of weight and number of rows."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from muxcluster.kernels.native.products import Panels, Preparation, panels, product
from tests.kernels.native.switch import two_threads

__all__ = ["two_threads"]

KINDS = ("fp32", "bf16", "int8", "int8-zeros", "fp8", "int4", "int4-zeros")
SHAPES = ((48, 64, 32), (53, 96, 96), (16, 520, 40), (7, 33, 33), (200, 300, 20))  # out, in, group


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _weight(kind: str, num_out: int, num_in: int, group: int) -> tuple[Panels, Tensor]:
    """A weight in panels, and the same in float64 [out, in]."""
    values = _random(num_out, num_in)
    if kind == "fp32":
        return panels(values), values.double()
    if kind == "bf16":
        return panels(values.bfloat16()), values.bfloat16().double()
    scales = _random(num_out, num_in // group, seed=1).abs() + 0.1
    zeros = (_random(*scales.shape, seed=2) * 4 + 8).round() if kind.endswith("zeros") else None
    if kind.startswith("int8"):
        values = (values * 50).round().clamp(-128, 127).to(torch.int8)
    elif kind == "fp8":
        values = (values * 100).to(torch.float8_e4m3fn)
        values[0, :5] = torch.tensor([0.0, 2.0**-9, -(2.0**-8), 448, -448]).to(values.dtype)
    else:
        values = (values * 4 + 8).round().clamp(0, 15).to(torch.uint8)
    middle = 8.0 if kind == "int4" else 0.0
    exact = values.double() - (
        middle if zeros is None else zeros.double().repeat_interleave(group, 1)
    )
    return panels(values, scales, zeros), exact * scales.double().repeat_interleave(group, 1)


def _check(found: Tensor, expected: Tensor, size: Tensor) -> None:
    """size: the sum of the products' sizes, in units of which fp32 rounds."""
    assert found.dtype == torch.float32
    assert ((found.double() - expected).abs() <= 2e-6 * (size + 1)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_rows(kind: str, shape: tuple[int, int, int]) -> None:
    weight, exact = _weight(kind, *shape)
    num_out, num_in, _ = shape
    bias = _random(num_out, seed=3)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13, 201):
        inputs = _random(num_rows, num_in, seed=4)
        added = _random(num_rows, num_out, seed=5)
        plain = inputs.double() @ exact.T
        size = inputs.double().abs() @ exact.abs().T
        _check(product(inputs, weight), plain, size)
        _check(product(inputs, weight, bias), plain + bias, size)
        _check(product(inputs, weight, bias, added), plain + bias + added, size)


@pytest.mark.parametrize("num_rows", [1, 4, 9])
def test_inputs_are_rounded_to_eight_bits_a_row(num_rows: int) -> None:
    weight, exact = _weight("int8", 48, 96, 96)
    inputs = _random(num_rows, 96, seed=6)
    inputs[0] = 0
    scales = (inputs.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
    rounded = ((inputs / scales).round() * scales).double()
    found = product(inputs, weight, preparation=Preparation(rounds=True))
    _check(found, rounded @ exact.T, rounded.abs() @ exact.abs().T)


@pytest.mark.parametrize(("num_out", "num_in"), [(48, 96), (53, 2100), (7, 34), (48, 91)])
def test_products_of_whole_numbers(num_out: int, num_in: int) -> None:
    values = (_random(num_out, num_in) * 50).round().clamp(-127, 127).to(torch.int8)
    values[0], values[1] = 127, -127  # with inputs alike, the largest sums there are
    scales = _random(num_out, 1, seed=1).abs() + 0.1
    exact = values.double() * scales.double()
    weight = panels(values, scales, rounds_inputs=True)
    assert weight.is_in_pairs == (num_in % 2 == 0)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13):
        inputs = _random(num_rows, num_in, seed=6)
        inputs[-1] = 3
        steps = (inputs.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
        rounded = ((inputs / steps).round() * steps).double()
        added = _random(num_rows, num_out, seed=5)
        found = product(inputs, weight, added[0], added, Preparation(rounds=True))
        expected = rounded @ exact.T + added[0] + added
        _check(found, expected, rounded.abs() @ exact.abs().T)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_gives_nothing_finite(broken: float) -> None:
    weight = panels(torch.ones(20, 32, dtype=torch.int8), torch.ones(20, 1), rounds_inputs=True)
    inputs = _random(2, 32)
    inputs[1, 3] = broken
    found = product(inputs, weight, preparation=Preparation(rounds=True))
    assert found[0].isfinite().all() and not found[1].isfinite().any()


@pytest.mark.parametrize("num_rows", [1, 4, 9])
@pytest.mark.parametrize("num_in", [96, 91])
def test_rows_are_normed_or_gated_first(num_rows: int, num_in: int) -> None:
    weight, exact = _weight("fp32", 48, num_in, num_in)
    inputs, norm = _random(num_rows, num_in, seed=8), _random(num_in, seed=9)
    wide = inputs.double()
    normed = wide / (wide.square().mean(1, keepdim=True) + 0.01).sqrt() * norm
    found = product(inputs, weight, preparation=Preparation(norm, 0.01))
    _check(found, normed @ exact.T, 2 * normed.abs() @ exact.abs().T)
    both = 10 * _random(num_rows, 2 * num_in, seed=10)
    gate, up = both.double().chunk(2, 1)
    gated = silu(gate) * up
    found = product(both, weight, preparation=Preparation(is_gated=True))
    _check(found, gated @ exact.T, 2 * gated.abs() @ exact.abs().T)


def test_rows_that_are_not_contiguous() -> None:
    weight, exact = _weight("int4", 48, 64, 32)
    inputs = _random(64, 5, seed=7).T
    found = product(inputs, weight)
    _check(found, inputs.double() @ exact.T, inputs.double().abs() @ exact.abs().T)


def test_no_rows() -> None:
    weight, _ = _weight("int8", 48, 64, 32)
    assert product(torch.empty(0, 64), weight).shape == (0, 48)


def test_bytes_are_those_of_the_elements() -> None:
    for kind, num_bytes in (
        ("fp32", 4.0),
        ("bf16", 2.0),
        ("int8", 1.0),
        ("fp8", 1.0),
        ("int4", 0.5),
    ):
        weight, _ = _weight(kind, 48, 64, 32)
        assert weight.values.nbytes == 48 * 64 * num_bytes
