"""Tokens with adapters of different ranks, and what each should get, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.row_cases import surrounded


@dataclass(frozen=True)
class Case:
    """The arguments of `low_rank_update`, and the outputs that it should leave."""

    outputs: Tensor
    inputs: Tensor
    down: Tensor
    up: Tensor
    starts: Tensor
    most_ranks: int
    tokens: Tensor
    tiles: Tensor
    expected: Tensor

    @property
    def arguments(self) -> tuple[Tensor | int, ...]:
        adapters = (self.down, self.up, self.starts, self.most_ranks)
        return (self.outputs, self.inputs, *adapters, self.tokens, self.tiles)


def case_of(
    adapters: list[int],
    ranks: list[int],
    dtype: torch.dtype,
    *,
    num_in: int = 70,
    num_out: int = 150,
    tile: int = 16,
    seed: int = 0,
) -> Case:
    """adapters: of each token, -1 for none. ranks: of each adapter. tile: most tokens of one."""
    torch.manual_seed(seed)
    inputs = surrounded((len(adapters), num_in), dtype)
    outputs = surrounded((len(adapters), num_out), dtype)
    down = (torch.randn(sum(ranks), num_in) / num_in**0.5).to(dtype)
    up = torch.randn(sum(ranks), num_out).to(dtype)
    starts = [sum(ranks[:place]) for place in range(len(ranks) + 1)]
    tokens: list[int] = []
    tiles: list[tuple[int, int, int]] = []
    for adapter in sorted(set(adapters) - {-1}):
        mine = [place for place, each in enumerate(adapters) if each == adapter]
        for first in range(0, len(mine), tile):
            tiles.append((adapter, len(tokens) + first, len(mine[first : first + tile])))
        tokens += mine
    expected = outputs.double().clone()
    for place, adapter in enumerate(adapters):
        if adapter >= 0:
            rows = slice(starts[adapter], starts[adapter + 1])
            low = (down[rows].double() @ inputs[place].double()).to(dtype).double()
            expected[place] += low @ up[rows].double()
    return Case(
        outputs,
        inputs,
        down,
        up,
        torch.tensor(starts, dtype=torch.int32),
        max(ranks),
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(tiles, dtype=torch.int32).reshape(-1, 3),
        expected,
    )


def assert_updated(case: Case) -> None:
    """The outputs are the expected ones but for the last digits of their type; the rounding of what
    lies between the two products may go either way."""
    dtype = case.outputs.dtype
    eps = torch.finfo(dtype).eps
    atol = (64 if dtype == torch.float32 else 24) * eps
    torch.testing.assert_close(case.outputs.double(), case.expected, rtol=4 * eps, atol=atol)
