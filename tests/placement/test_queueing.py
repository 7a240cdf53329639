"""Waits are those of queueing theory: exact formulas as oracles."""

import math
import random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.placement.estimator.queueing import Part, places_wait, queue_wait, rest_of
from muxcluster.placement.problem import LENGTH_CUBE, LENGTH_CV2, LENGTH_SIGMA


def erlang_c(places: int, offered: float) -> float:
    """Probability of a wait in an M/M/c queue."""
    inverse = 1.0
    for each in range(1, places + 1):
        inverse = 1 + inverse * each / offered
    blocked = 1 / inverse
    return places * blocked / (places - offered * (1 - blocked))


@pytest.mark.parametrize(("places", "load"), [(16, 0.8), (64, 0.85), (64, 0.95), (256, 0.95)])
def test_rows_wait_as_in_an_m_m_c_queue(places: int, load: float) -> None:
    """With the variance of a Poisson number in service; each is served for a second."""
    offered = places * load
    found = places_wait(offered, offered, places, places - offered)
    waits = erlang_c(places, offered)
    high = max(0.0, math.log(waits / 0.05)) / (places - offered)
    assert found.high == pytest.approx(high, abs=0.4 / (places - offered))
    median = max(0.0, math.log(waits / 0.5)) / (places - offered)
    assert found.median == pytest.approx(median, abs=0.4 / (places - offered))


def test_free_rows_are_not_waited_for() -> None:
    assert places_wait(10.0, 10.0, 64, 5.0).high == 0.0
    assert places_wait(70.0, 70.0, 64, 5.0).high == pytest.approx(math.log(20) / 5)


@given(load=st.floats(0.01, 0.95))
def test_a_queue_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    found = queue_wait(load, 2.0)
    rate, square = load / 2.0, 4.0 * (1 + LENGTH_CV2)
    assert found.mean == pytest.approx(rate * square / (2 * (1 - load)))
    assert found.variance >= 0


def test_what_is_left_of_an_interval_when_somebody_comes() -> None:
    """Oracle: intervals of 1 second, a tenth of them longer by a log-normal time, met at random."""
    draw = random.Random(1)
    mu = -(LENGTH_SIGMA**2) / 2
    lengths = [
        1 + (draw.lognormvariate(mu, LENGTH_SIGMA) if draw.random() < 0.1 else 0.0)
        for _ in range(200_000)
    ]
    met = draw.choices(lengths, weights=lengths, k=200_000)
    left = [draw.random() * each for each in met]
    mean = fmean(lengths)
    variance = fmean(each**2 for each in lengths) - mean**2
    found = rest_of(mean, variance, 0.1 * LENGTH_CUBE)
    assert found.mean == pytest.approx(fmean(left), rel=0.02)
    spread = fmean(each**2 for each in left) - fmean(left) ** 2
    assert found.variance == pytest.approx(spread, rel=0.2)


def test_quantiles_are_log_normal() -> None:
    draw = random.Random(2)
    sample = [draw.lognormvariate(-1.0, 0.7) for _ in range(200_000)]
    mean = fmean(sample)
    found = Part(mean, fmean(each**2 for each in sample) - mean**2).quantiles()
    cuts = quantiles(sample, n=20)
    assert found.median == pytest.approx(cuts[9], rel=0.03)
    assert found.high == pytest.approx(cuts[18], rel=0.03)
    assert Part(0.0).quantiles().high == 0.0
