"""Margins of predictions: what 95 and 99 of 100 jobs keep within, learnt from those of late."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.scheduling.steptime.learn import Margins
from muxcluster.scheduling.steptime.model import StepTimes
from tests.scheduling.test_prediction_measured import job, measured, seconds


@given(st.lists(st.floats(0.2, 3.0), min_size=256, max_size=400))
def test_as_many_of_the_last_jobs_were_within_them(ratios: list[float]) -> None:
    margins = Margins()
    for ratio in ratios:
        margins.add(0.01, 0.01 * ratio)
    # They are found again after every eighth job.
    last = np.array(ratios[: len(ratios) - (len(ratios) + 1) % 8][-256:])
    for value, part in ((margins.token, 0.95), (margins.first_token, 0.99)):
        assert 1.0 <= value <= 2.0
        within = float(np.mean(last <= value + 1e-9))
        assert within >= part or value == 2.0
        if 1.0 < value < 2.0:
            assert float(np.mean(last < value - 1e-9)) <= part + 0.01


def test_few_jobs_do_not_make_them_small() -> None:
    margins, tokens, first_tokens = Margins(), [], []
    for _ in range(400):
        tokens.append(margins.token)
        first_tokens.append(margins.first_token)
        margins.add(1.0, 1.0)
    assert set(tokens[:15]) == set(first_tokens[:90]) == {1.4}
    assert tokens[30] == first_tokens[120] == 1.0


@pytest.mark.parametrize("overrun", [0.0, 0.1, 0.3])
def test_they_are_learnt_per_model_from_jobs_as_they_end(overrun: float) -> None:
    rng, times = random.Random(1), StepTimes(measured())
    margins = times.margins("m")
    assert margins.token == margins.first_token == 1.4
    for _ in range(400):
        work = rng.randint(1, 20), rng.randint(10, 200), rng.randint(0, 2), rng.randint(2, 60)
        factor = 1.0 + overrun if rng.random() < 0.2 else 1.0
        times.observe(job(*work), factor * seconds(*work))
    # Predictions follow the mean of all jobs, a fifth of which overrun it.
    expected = (1.0 + overrun) / (1.0 + 0.2 * overrun)
    assert margins.token == pytest.approx(expected, rel=0.05)
    assert margins.token <= margins.first_token <= 1.1 * expected
    assert times.margins("other").token == 1.4
