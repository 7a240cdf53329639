"""The sampling twin against a float64 sort and against the engine's own sampler."""

import numpy as np
import pytest
import torch

from muxcluster.engine.sampling.draw import draw
from muxcluster.engine.sampling.randomness import uniforms
from muxcluster.engine.sampling.truncation import thresholds
from muxcluster.kernels.sample import sample
from tests.kernels.sample_cases import Case, count_excused, one_row, random_case


@pytest.mark.parametrize("vocab", [1, 2, 7, 64, 257, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_a_sort(vocab: int, ties: bool) -> None:
    case = random_case(200, vocab, seed=vocab, ties=ties)
    assert count_excused(case, sample(*case.arguments())) <= 1


def test_equals_a_sort_at_a_real_vocabulary() -> None:
    case = random_case(24, 32_000, seed=1)
    assert count_excused(case, sample(*case.arguments())) <= 1


@pytest.mark.parametrize("ties", [False, True])
def test_equals_the_engine(ties: bool) -> None:
    rows, vocab = 300, 3000
    case = random_case(rows, vocab, seed=5, ties=ties)
    uniform = uniforms(np.arange(rows, dtype=np.uint64), np.arange(rows))
    case = Case(*case.arguments()[:5], torch.from_numpy(uniform))
    tokens = sample(*case.arguments())
    scores = case.logits - case.logits.amax(-1, keepdim=True)
    scores /= case.temperature.float().clamp(min=1e-30).unsqueeze(1)
    cut = thresholds(scores, case.top_k, case.top_p, case.min_p)
    drawn = draw(scores, cut, case.uniform)
    engine = torch.where(case.temperature > 0, drawn, case.logits.argmax(-1))
    assert int((tokens != engine).sum()) <= 1
    assert count_excused(case, tokens) <= 1
    assert len(tokens.unique()) > 50


def test_ties_with_the_last_survivor_survive() -> None:
    logits = [0.0, 2.0, 1.0, 1.0, 1.0]
    drawn = {
        int(sample(*one_row(logits, top_k=2, uniform=u).arguments()))
        for u in np.linspace(0.01, 0.99, 50)
    }
    assert drawn == {1, 2, 3, 4}


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert int(sample(*one_row([1.0, 3.0, 3.0], temperature=0.0).arguments())) == 1


def test_impossible_tokens() -> None:
    nan, inf = float("nan"), float("inf")
    assert int(sample(*one_row([nan, 0.0, -inf], uniform=0.9999).arguments())) == 1
    assert int(sample(*one_row([0.0, inf, nan], temperature=0.0).arguments())) == 1
    assert int(sample(*one_row([-inf] * 4, uniform=0.6).arguments())) == 2
    assert int(sample(*one_row([nan] * 4, temperature=0.0).arguments())) == 0


@pytest.mark.parametrize("limits", [{"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_tightest_limits_leave_the_best(limits: dict[str, float]) -> None:
    assert int(sample(*one_row([0.0, 4.0, 3.9], uniform=0.999, **limits).arguments())) == 1


def test_no_rows() -> None:
    assert sample(*random_case(0, 5, seed=0).arguments()).shape == (0,)


def test_wrong_arguments_are_refused() -> None:
    case = random_case(2, 8, seed=0)
    logits, *limits = case.arguments()
    with pytest.raises(ValueError, match="fp32"):
        sample(logits.half(), *limits)
    with pytest.raises(ValueError, match="contiguous"):
        sample(logits.t().contiguous().t(), *limits)
    with pytest.raises(ValueError, match="top_k must be"):
        sample(logits, limits[0], limits[1].int(), *limits[2:])
    with pytest.raises(ValueError, match="uniform must be"):
        sample(logits, *limits[:4], limits[4][:1])
