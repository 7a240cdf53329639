"""The sampling kernel in the interpreter against a float64 sort and against its twin."""

import numpy as np
import pytest
import torch

from muxcluster.kernels.sample import sample as twin
from muxcluster.kernels.triton_ops.sample import sample
from tests.kernels.sample_cases import count_excused, one_row, random_case


@pytest.mark.parametrize("vocab", [1, 2, 7, 127, 128, 129, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_a_sort(vocab: int, ties: bool) -> None:
    case = random_case(12, vocab, seed=vocab, ties=ties)
    tokens = sample(*case.arguments())
    assert count_excused(case, tokens) <= 1
    assert int((tokens != twin(*case.arguments())).sum()) <= 1


def test_more_than_one_block() -> None:
    case = random_case(8, 20_011, seed=3)
    assert count_excused(case, sample(*case.arguments())) <= 1


def test_rows_with_a_stride() -> None:
    case = random_case(10, 50, seed=4)
    wide = torch.full((10, 64), torch.nan)
    wide[:, :50] = case.logits
    expected = sample(*case.arguments())
    assert torch.equal(sample(wide[:, :50], *case.arguments()[1:]), expected)


def test_ties_with_the_last_survivor_survive() -> None:
    logits = [0.0, 2.0, 1.0, 1.0, 1.0]
    drawn = {
        int(sample(*one_row(logits, top_k=2, uniform=u).arguments()))
        for u in np.linspace(0.01, 0.99, 16)
    }
    assert drawn == {1, 2, 3, 4}


def test_impossible_tokens() -> None:
    nan, inf = float("nan"), float("inf")
    assert int(sample(*one_row([nan, 0.0, -inf], uniform=0.9999).arguments())) == 1
    assert int(sample(*one_row([0.0, inf, inf], temperature=0.0).arguments())) == 1
    assert int(sample(*one_row([-inf] * 4, uniform=0.6).arguments())) == 2
    assert int(sample(*one_row([nan] * 4, temperature=0.0).arguments())) == 0


@pytest.mark.parametrize("limits", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_tightest_limits_leave_the_best(limits: dict[str, float]) -> None:
    assert int(sample(*one_row([0.0, 4.0, 3.9], uniform=0.999, **limits).arguments())) == 1


def test_clustered_logits_end() -> None:
    """Distances over forty orders of magnitude, where interpolation alone would crawl."""
    gaps = [2.0**-power for power in range(120)]
    logits = [-gap for gap in gaps]
    case = one_row(logits, top_k=60, uniform=0.4)
    assert torch.equal(sample(*case.arguments()), twin(*case.arguments()))


def test_wrong_arguments_are_refused() -> None:
    logits, *limits = random_case(2, 8, seed=0).arguments()
    with pytest.raises(ValueError, match="fp32"):
        sample(logits.double(), *limits)
