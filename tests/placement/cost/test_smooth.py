"""Kriging against its definition, the monotone projection against scipy's, a surface's corners."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from muxcluster.placement.cost.smooth import smoothed
from muxcluster.placement.cost.surface import Surface, monotone

AXES = np.meshgrid(np.arange(5.0), np.arange(4.0), np.arange(3.0), indexing="ij")
POINTS = np.stack([axis.ravel() for axis in AXES], axis=1) / 2
SMOOTH = 0.1 * POINTS[:, 0] - 0.05 * POINTS[:, 1] ** 2


def test_smooth_values_are_kept_and_gaps_filled_from_their_neighbours() -> None:
    assert smoothed(POINTS, SMOOTH, POINTS) == pytest.approx(SMOOTH, abs=0.02)
    inner = int(np.flatnonzero((POINTS == [1.0, 0.5, 0.5]).all(axis=1))[0])
    others = np.delete(np.arange(len(POINTS)), inner)
    filled = smoothed(POINTS[others], SMOOTH[others], POINTS[[inner]])
    assert filled == pytest.approx(SMOOTH[[inner]], abs=0.02)


@pytest.mark.parametrize("size", [1.1, -1.1, 0.4])
@pytest.mark.parametrize("place", [0, 17, 31])
def test_one_outlier_changes_nothing_else_and_not_even_itself(size, place) -> None:
    values = SMOOTH.copy()
    values[place] += size
    assert smoothed(POINTS, values, POINTS) == pytest.approx(SMOOTH, abs=0.05)


def test_leaving_points_out_one_by_one_equals_never_having_had_them() -> None:
    noise = np.random.default_rng(3).normal(scale=0.01, size=len(POINTS))
    values = SMOOTH + noise
    values[[5, 40, 41]] += (0.8, -0.6, 1.5)
    without = np.delete(np.arange(len(POINTS)), [5, 40, 41])
    direct = smoothed(POINTS[without], values[without], POINTS)
    assert smoothed(POINTS, values, POINTS) == pytest.approx(direct, abs=1e-9)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_points_are_enough(number) -> None:
    found = smoothed(POINTS[:number], np.full(number, 0.3), POINTS + 50)
    assert found == pytest.approx(np.full(len(POINTS), 0.3), abs=0.02)


grids = st.integers(0, 2**32 - 1).map(
    lambda seed: np.exp(np.random.default_rng(seed).normal(size=(3, 5, 4)))
)


@given(grids)
def test_the_projection_is_monotone(seconds) -> None:
    found = np.log(monotone(seconds))
    assert np.diff(found, axis=0).max() <= 1e-12
    assert np.diff(found, axis=1).min() >= -1e-12
    assert np.diff(found, axis=2).min() >= -1e-12
    assert monotone(np.exp(found)) == pytest.approx(np.exp(found))


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=12))
def test_along_one_line_the_projection_is_isotonic_regression(logs) -> None:
    expected = isotonic_regression(logs).x
    for axis, order in ((0, -1), (1, 1), (2, 1)):
        shape = [1, 1, 1]
        shape[axis] = len(logs)
        seconds = np.exp(np.array(logs)[::order]).reshape(shape)
        found = np.log(monotone(seconds)).ravel()[::order]
        assert found == pytest.approx(expected, abs=1e-9)


@settings(max_examples=30)
@given(grids)
def test_the_projection_is_nearly_the_nearest(seconds) -> None:
    """No monotone blend of the grid's neighbours that we know how to make is nearer."""
    logs = np.log(seconds)
    found = np.log(monotone(seconds))
    flat = np.full_like(logs, logs.mean())
    rising = np.maximum.accumulate(np.maximum.accumulate(logs[::-1], axis=0), axis=1)
    rising = np.maximum.accumulate(rising, axis=2)[::-1]
    distance = ((found - logs) ** 2).sum()
    for other in (flat, rising, (flat + rising) / 2, (found + flat) / 2):
        assert distance <= ((other - logs) ** 2).sum() * (1 + 1e-2)


def test_a_surface_is_exact_at_knots_and_proportional_beyond() -> None:
    seconds = np.array([[[4.0, 6.0], [6.0, 12.0]], [[2.0, 3.0], [3.0, 6.0]]])
    surface = Surface((0.5, 1.0), (1, 4), (10, 30), seconds)
    assert surface.seconds(0.5, 1, 10) == 4.0
    assert surface.seconds(1.0, 4, 30) == 6.0
    assert surface.seconds(1.0, 2.5, 20) == pytest.approx((2 + 3 + 3 + 6) / 4)
    assert surface.seconds(2 / 3, 1, 10) == pytest.approx(3.0)
    assert surface.seconds(1.0, 8, 60) == pytest.approx(24.0)
    assert surface.seconds(0.25, 1, 10) == pytest.approx(8.0)
    assert surface.seconds(1.0, 0.5, 1) == 2.0
