"""The margin of predictions: what 95 of 100 jobs keep within, learnt from those of late."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.scheduling.steptime.learn import Margin
from muxcluster.scheduling.steptime.model import StepTimes
from tests.scheduling.test_prediction_measured import job, measured, seconds


@given(st.lists(st.floats(0.2, 3.0), min_size=256, max_size=400))
def test_nineteen_of_twenty_of_the_last_jobs_were_within_it(ratios: list[float]) -> None:
    margin = Margin()
    for ratio in ratios:
        margin.add(0.01, 0.01 * ratio)
    assert 1.0 <= margin.value <= 2.0
    # It is found again after every eighth job.
    last = np.array(ratios[: len(ratios) - (len(ratios) + 4) % 8][-256:])
    within = float(np.mean(last <= margin.value + 1e-9))
    assert within >= 0.94 or margin.value == 2.0
    if 1.0 < margin.value < 2.0:
        assert float(np.mean(last >= margin.value - 1e-9)) >= 0.05


def test_few_jobs_do_not_make_it_small() -> None:
    margin, values = Margin(), []
    for _ in range(200):
        values.append(margin.value)
        margin.add(1.0, 1.0)
    assert set(values[:70]) == {1.4}
    assert values[-1] == 1.0


@pytest.mark.parametrize("overrun", [0.0, 0.1, 0.3])
def test_it_is_learnt_per_model_from_jobs_as_they_end(overrun: float) -> None:
    rng, times = random.Random(1), StepTimes(measured())
    assert times.margin("m") == 1.4
    for _ in range(400):
        work = rng.randint(1, 20), rng.randint(10, 200), rng.randint(0, 2), rng.randint(2, 60)
        factor = 1.0 + overrun if rng.random() < 0.2 else 1.0
        times.observe(job(*work), factor * seconds(*work))
    # Predictions follow the mean of all jobs, a fifth of which overrun it.
    assert times.margin("m") == pytest.approx((1.0 + overrun) / (1.0 + 0.2 * overrun), rel=0.05)
    assert times.margin("other") == 1.4
