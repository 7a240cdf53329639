"""Divided layers yield what whole ones do, on every rank."""

import pytest
import torch
from torch import Tensor, nn

from muxcluster.engine.load.division.division import bounds
from muxcluster.engine.load.division.group import RankGroup
from muxcluster.engine.load.division.layers import GatheredLinear, SummedEmbedding, SummedLinear
from tests.engine.parallel.ranks import on_ranks

SIZES = (2, 4)


def part_of(linear: nn.Linear, group: RankGroup, axis: int, *, has_bias: bool) -> nn.Linear:
    """This rank's part of the weight along `axis`; the bias is divided with axis 0 alone."""
    start, end = bounds(linear.weight.shape[axis], group)
    weight = linear.weight.narrow(axis, start, end - start)
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    part.weight = nn.Parameter(weight)
    if has_bias:
        part.bias = nn.Parameter(linear.bias[start:end] if axis == 0 else linear.bias.clone())
    return part


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_linear_divided_by_inputs_adds_its_bias_once(size: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    whole = nn.Linear(8 * size, 5, bias=has_bias)
    inputs = torch.randn(1, 3, 8 * size)

    def forward(group: RankGroup) -> Tensor:
        part = part_of(whole, group, 1, has_bias=has_bias)
        mine = inputs[..., slice(*bounds(8 * size, group))]
        return SummedLinear(part, group)(mine)

    for output in on_ranks(size, forward):
        torch.testing.assert_close(output, whole(inputs))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [16, 13, 10])
@pytest.mark.parametrize("has_bias", [False, True])
def test_logits_are_whole_and_the_same_bits_everywhere(
    size: int, rows: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    whole = nn.Linear(7, rows, bias=has_bias)
    inputs = torch.randn(1, 3, 7)

    def forward(group: RankGroup) -> Tensor:
        return GatheredLinear(part_of(whole, group, 0, has_bias=has_bias), rows, group)(inputs)

    outputs = on_ranks(size, forward)
    torch.testing.assert_close(outputs[0], whole(inputs))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [16, 13, 10])
def test_every_token_finds_its_row(size: int, rows: int) -> None:
    torch.manual_seed(0)
    whole = nn.Embedding(rows, 6)
    tokens = torch.arange(rows).unsqueeze(0)

    def forward(group: RankGroup) -> Tensor:
        start, end = bounds(rows, group)
        part = nn.Embedding(end - start, 6, _weight=whole.weight[start:end].clone())
        return SummedEmbedding(part, start, group)(tokens)

    for output in on_ranks(size, forward):
        assert torch.equal(output, whole(tokens))
