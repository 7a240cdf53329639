"""low_rank_update against float64, token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.kernels.products.low_rank_update import low_rank_update
from tests.kernels.low_rank_cases import assert_updated, case_of
from tests.kernels.row_cases import assert_surroundings_untouched


@given(
    ranks=st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    places=st.lists(st.integers(-1, 3), min_size=1, max_size=40),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    tile=st.sampled_from([1, 16, 10_000]),
    seed=st.integers(0, 2**16),
)
def test_against_float64(
    ranks: list[int], places: list[int], dtype: torch.dtype, tile: int, seed: int
) -> None:
    adapters = [each if each < len(ranks) else -1 for each in places]
    case = case_of(adapters, ranks, dtype, tile=tile, seed=seed)
    low_rank_update(*case.arguments)
    assert_updated(case)
    assert_surroundings_untouched(case.outputs)


def test_tokens_without_an_adapter_keep_every_bit() -> None:
    case = case_of([-1, 0, -1, 1, -1], [3, 5], torch.float16)
    before = case.outputs.clone()
    low_rank_update(*case.arguments)
    assert torch.equal(case.outputs[::2], before[::2])
    assert not torch.equal(case.outputs, before)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda t: t[:-1], "numbers of tokens"),
        (1, lambda t: t[:, :-1], "numbers of inputs"),
        (1, lambda t: t.double(), "must be torch.float64"),
        (2, lambda t: t.half(), "down must be torch.float32"),
        (2, lambda t: t[:-1], "numbers of ranks"),
        (3, lambda t: t[:, :-1].contiguous(), "numbers of outputs"),
        (2, lambda t: torch.cat((t, t), 1)[:, : t.shape[1]], "must be contiguous"),
        (4, lambda t: t.long(), "starts must be contiguous torch.int32"),
        (6, lambda t: t.int(), "tokens must be contiguous torch.int64"),
        (7, lambda t: t[:, :2], "tiles must be"),
    ],
)
def test_refused(place, change, message) -> None:
    arguments = list(case_of([0, 1], [2, 3], torch.float32).arguments)
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=message):
        low_rank_update(*arguments)
