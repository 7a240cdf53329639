"""One line that follows observations: it finds known coefficients, noise does not carry it off."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.scheduling.steptime.line import LEAST, MOST, Fit, Line

PRIOR = Line(0.01, 1e-4, 2e-7)
FACTORS = st.floats(0.5, 2.0)
JOBS = st.tuples(st.integers(1, 256), st.integers(1, 4096)).map(
    lambda job: (float(job[0]), float(job[0] * job[1]))
)
OBSERVATIONS = st.lists(st.tuples(JOBS, st.floats(1e-6, 1e3)), max_size=60)


def some_jobs(rng: random.Random, count: int) -> list[tuple[float, float]]:
    rows = [rng.randint(1, 256) for _ in range(count)]
    return [(float(row), float(row * rng.randint(16, 4096))) for row in rows]


def worst(fit: Fit, truth: Line, jobs: list[tuple[float, float]]) -> float:
    return max(abs(fit.line.seconds(*job) / truth.seconds(*job) - 1) for job in jobs)


@settings(deadline=None, max_examples=60)
@given(FACTORS, FACTORS, FACTORS, st.integers(0, 99))
def test_known_coefficients_are_found(base, token, attended, seed) -> None:
    rng = random.Random(seed)
    truth = PRIOR.scaled((base, token, attended, 1.0))
    fit = Fit(PRIOR)
    for job in some_jobs(rng, 200):
        fit.observe(*job, truth.seconds(*job))
    jobs = some_jobs(rng, 50)
    off = sum(abs(fit.line.seconds(*job) / truth.seconds(*job) - 1) for job in jobs) / len(jobs)
    assert off < 0.04
    assert worst(fit, truth, jobs) < 0.12


def test_noise_averages_out() -> None:
    rng = random.Random(1)
    truth = PRIOR.scaled((1.8, 0.7, 1.3, 1.0))
    fit = Fit(PRIOR)
    for job in some_jobs(rng, 300):
        fit.observe(*job, truth.seconds(*job) * rng.uniform(0.85, 1.15))
    assert worst(fit, truth, some_jobs(rng, 50)) < 0.08


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5, 4.0])
def test_a_step_is_followed(factor) -> None:
    rng = random.Random(2)
    fit = Fit(PRIOR)
    for job in some_jobs(rng, 200):
        fit.observe(*job, PRIOR.seconds(*job))
    truth = PRIOR.scaled((factor,) * 4)
    for job in some_jobs(rng, 60):
        fit.observe(*job, truth.seconds(*job))
    assert worst(fit, truth, some_jobs(rng, 50)) < 0.05


def test_outliers_are_outvoted() -> None:
    rng = random.Random(3)
    truth = PRIOR.scaled((1.5, 1.5, 1.5, 1.0))
    fit = Fit(PRIOR)
    for job in some_jobs(rng, 400):
        fit.observe(*job, truth.seconds(*job) * (10 if rng.random() < 0.02 else 1))
    assert worst(fit, truth, some_jobs(rng, 50)) < 0.1


@given(OBSERVATIONS, JOBS, st.floats(1e-9, 1e9))
def test_one_observation_moves_predictions_by_a_quarter_at_most(before, job, seconds) -> None:
    fit = Fit(PRIOR._replace(floor_s=0.02))
    for each in before:
        fit.observe(*each[0], each[1])
    earlier = fit.line
    fit.observe(*job, seconds)
    for probe in [(1.0, 16.0), (256.0, 1e6), job]:
        ratio = fit.line.seconds(*probe) / earlier.seconds(*probe)
        assert 0.8 - 1e-9 <= ratio <= 1.25 + 1e-9


@given(OBSERVATIONS, JOBS, st.integers(0, 64), st.integers(0, 4096))
def test_gains_are_bounded_and_more_work_is_never_less(observed, job, rows, tokens) -> None:
    prior = PRIOR._replace(floor_s=0.02)
    fit = Fit(prior)
    for each in observed:
        fit.observe(*each[0], each[1])
    assert all(LEAST <= gain <= MOST for gain in fit.gains)
    assert fit.line == prior.scaled(fit.gains)
    assert fit.line.seconds(job[0] + rows, job[1] + tokens) >= fit.line.seconds(*job)


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_the_bounds_are_reached_and_kept(seconds) -> None:
    rng = random.Random(4)
    fit = Fit(PRIOR)
    for job in some_jobs(rng, 500):
        fit.observe(*job, seconds)
    bound = LEAST if seconds < 1 else MOST
    assert fit.gains[:3] == pytest.approx((bound,) * 3)


def test_same_jobs_over_and_over_leave_the_proportions() -> None:
    """Nothing is known of other directions, so the prior's shape holds at the seen gain."""
    fit = Fit(PRIOR)
    rng = random.Random(5)
    for _ in range(2000):
        fit.observe(32.0, 32 * 500.0, 2 * PRIOR.seconds(32, 32 * 500) * rng.uniform(0.9, 1.1))
    assert fit.line.seconds(128, 128 * 2000) == pytest.approx(
        2 * PRIOR.seconds(128, 128 * 2000), rel=0.1
    )


def test_the_floor_follows_small_jobs_and_only_them() -> None:
    prior = Line(0.001, 1e-4, 1e-8, floor_s=0.02)
    fit = Fit(prior)
    for _ in range(200):
        fit.observe(16.0, 128.0, 0.03)
    assert fit.line.seconds(16, 128) == pytest.approx(0.03, rel=0.01)
    assert fit.gains[:3] == (1.0, 1.0, 1.0)
    fit.observe(1000.0, 500_000.0, prior.seconds(1000, 500_000) * 1.2)
    assert fit.gains[3] == pytest.approx(1.5, rel=0.01)
    assert fit.gains[1] > 1.0


def test_what_says_nothing_is_ignored() -> None:
    fit = Fit(PRIOR)
    fit.observe(1.0, 16.0, 0.0)
    fit.observe(1.0, 16.0, float("nan"))
    assert fit.line == PRIOR
