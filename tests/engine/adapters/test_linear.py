"""An adapted linear against the sums of its definition, token by token in float64."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from muxcluster.engine.adapters.linear import AdaptedLinear, Update
from muxcluster.engine.adapters.low_rank import LowRank
from muxcluster.engine.adapters.tokens import NO_ADAPTER, AdapterTokens, CurrentTokens

CPU = torch.device("cpu")
IN, PARTS = 5, (4, 3, 2)  # a product of three linears

Pair = tuple[Tensor, Tensor]  # A and B


def stacked(pairs: Sequence[Pair]) -> LowRank:
    ranks = [len(down) for down, _ in pairs]
    starts = torch.tensor([0, *accumulate(ranks)], dtype=torch.int32)
    down = torch.cat([down for down, _ in pairs])
    return LowRank(down, torch.cat([up.T for _, up in pairs]), starts, max(ranks))


@given(
    ranks=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=4),
    asked=st.lists(st.integers(0, 4), min_size=1, max_size=9),
    seed=st.integers(0, 2**16),
)
def test_each_token_gets_what_its_own_adapter_adds(
    ranks: list[tuple[int, int, int]], asked: list[int], seed: int
) -> None:
    """ranks: of each adapter in each part of the product; 0 leaves the part as it is."""
    generator = torch.Generator().manual_seed(seed)
    adapters = [each - 1 if each - 1 < len(ranks) else NO_ADAPTER for each in asked]
    pairs: list[list[Pair]] = [
        [
            (
                torch.randn(of_adapter[part], IN, generator=generator),
                torch.randn(size, of_adapter[part], generator=generator),
            )
            for of_adapter in ranks
        ]
        for part, size in enumerate(PARTS)
    ]
    firsts = [0, *accumulate(PARTS)]
    updates = [
        Update(first, stacked(each))
        for first, each in zip(firsts, pairs, strict=False)
        if any(len(down) for down, _ in each)
    ]
    base, current = nn.Linear(IN, sum(PARTS)), CurrentTokens()
    adapted = AdaptedLinear(base, sum(PARTS), updates, current)
    inputs = torch.randn(len(asked), IN, generator=generator)
    with torch.inference_mode():
        plain = base(inputs)
        assert torch.equal(adapted(inputs), plain)
        current.tokens = AdapterTokens.of(np.array(adapters, dtype=np.int32), CPU)
        found = adapted(inputs)
        whole = adapted(inputs.unsqueeze(0))[0]
    expected = plain.double().clone()
    for row, adapter in enumerate(adapters):
        for part, size in enumerate(PARTS):
            if adapter != NO_ADAPTER:
                down, up = pairs[part][adapter]
                added = up.double() @ (down.double() @ inputs[row].double())
                expected[row, firsts[part] : firsts[part] + size] += added
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(whole, found)


def test_other_tokens_than_those_of_the_forward_are_refused() -> None:
    current = CurrentTokens()
    update = Update(0, stacked([(torch.ones(1, IN), torch.ones(4, 1))]))
    adapted = AdaptedLinear(nn.Linear(IN, 4), 4, [update], current)
    current.tokens = AdapterTokens.of(np.zeros(3, dtype=np.int32), CPU)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="2 tokens of 3"):
        adapted(torch.zeros(2, IN))


@given(asked=st.lists(st.integers(-1, 3), max_size=80), is_gpu=st.booleans())
def test_tiles_hold_every_token_with_an_adapter_once(asked: list[int], is_gpu: bool) -> None:
    """On a GPU of limited size; the "meta" device stands for one, and has no numbers to look at."""
    adapters = np.array(asked, dtype=np.int32)
    found = AdapterTokens.of(adapters, CPU)
    if is_gpu:
        on_gpu = AdapterTokens.of(adapters, torch.device("meta"))
        counts = [asked.count(each) for each in range(4)]
        assert len(on_gpu.tiles) == sum(-(-count // 16) for count in counts)
        assert on_gpu.tokens.shape == found.tokens.shape
        return
    tokens = found.tokens.tolist()
    assert sorted(tokens) == [place for place, each in enumerate(asked) if each != NO_ADAPTER]
    seen = 0
    for adapter, first, count in found.tiles.tolist():
        mine = tokens[first : first + count]
        assert mine == sorted(mine)
        assert {asked[place] for place in mine} == {adapter}
        assert first == seen
        seen += count
    assert seen == len(tokens)
