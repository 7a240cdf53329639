"""Length distributions against the numbers they were made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.traces.quantiles import Quantiles
from muxcluster.workload.lengths import Independent, Limited, Pairs
from muxcluster.workload.marginals import Constant, LogNormal


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@given(st.floats(50, 5000), st.floats(0.2, 1.0))
def test_lognormal_of_mean_and_median(mean: float, ratio: float) -> None:
    found = LogNormal.of_mean(mean, {50: mean * ratio})
    assert math.exp(found.mu) == pytest.approx(mean * ratio)
    assert math.exp(found.mu + found.sigma**2 / 2) == pytest.approx(mean)


@given(st.floats(1, 8), st.floats(0.05, 1.2), st.sampled_from([10.0, 50.0, 90.0, 99.0]))
def test_lognormal_is_found_again(mu: float, sigma: float, percent: float) -> None:
    z = {10.0: -1.2815515655446004, 50.0: 0.0, 90.0: 1.2815515655446004, 99.0: 2.3263478740408408}
    # the narrower of two answers is this one as long as sigma is below z (or z is not positive)
    mean = math.exp(mu + sigma**2 / 2)
    again = LogNormal.of_mean(mean, {percent: math.exp(mu + z[percent] * sigma)})
    assert (again.mu, again.sigma) == pytest.approx((mu, sigma), abs=1e-6)


def test_lognormal_draws() -> None:
    drawn = LogNormal(5.0, 0.7).draw(rng(), 50_000)
    logs = np.log(drawn)
    assert (logs.mean(), logs.std()) == pytest.approx((5.0, 0.7), abs=0.02)
    assert drawn.mean() == pytest.approx(math.exp(5.0 + 0.245), rel=0.02)
    cut = LogNormal(5.0, 0.7, most=200).draw(rng(), 50_000)
    assert (cut == np.minimum(drawn, 200)).all()


def test_quantiles_give_back_their_percentiles() -> None:
    values = tuple(float(v) for v in np.linspace(10, 1010, 101))
    drawn = Quantiles(values).draw(rng(), 100_000)
    assert np.percentile(drawn, [0, 25, 50, 99]) == pytest.approx([10, 260, 510, 1000], rel=0.02)
    assert drawn.mean() == pytest.approx(510, rel=0.01)


def test_quantiles_keep_the_mean_that_one_huge_request_would_spoil() -> None:
    values = (*(float(v) for v in range(100)), 50_000.0)
    straight = Quantiles(values).draw(rng(), 200_000)
    assert straight.mean() == pytest.approx(49 + 250, rel=0.05)
    bent = Quantiles(values, mean=60.0).draw(rng(), 200_000)
    assert bent.mean() == pytest.approx(60.0, rel=0.1)
    assert np.percentile(bent, 98) == np.percentile(straight, 98)
    # a mean that no tail can reach leaves the tail at its end
    assert Quantiles(values, mean=1.0).draw(rng(), 10_000).max() == pytest.approx(99, abs=1)


def test_parts_of_a_prompt_may_be_missing() -> None:
    nothing = Quantiles((0.0, 0.0, 0.0))
    assert (nothing.amounts(rng(), 9) == 0).all() and (nothing.draw(rng(), 9) == 1).all()


def test_limits_and_independence() -> None:
    lengths = Independent(LogNormal(5.0, 1.0), LogNormal(4.0, 1.0))
    prompt, output = lengths.draw(rng(), 20_000)
    assert abs(np.corrcoef(np.log(prompt), np.log(output))[0, 1]) < 0.03
    short = Limited(lengths, 100, 50).draw(rng(), 20_000)
    assert (short[0] == np.minimum(prompt, 100)).all() and short[1].max() == 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: LogNormal(1.0, -0.1),
        lambda: LogNormal(math.nan, 1.0),
        lambda: LogNormal.of_mean(100.0, {50: 101.0}),
        lambda: LogNormal.of_mean(100.0, {99: 5000.0}),
        lambda: LogNormal.of_mean(100.0, {50: 90.0, 99: 300.0}),
        lambda: Quantiles((1.0, 2.0)),
        lambda: Quantiles((1.0, 3.0, 2.0)),
        lambda: Quantiles((-1.0, 1.0, 2.0)),
        lambda: Pairs(np.array([1]), np.array([1, 2])),
        lambda: Pairs(np.array([1]), np.array([0])),
        lambda: Limited(Pairs(np.array([1]), np.array([1])), 0, 1),
    ],
)
def test_impossible_distributions_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError):
        make()
