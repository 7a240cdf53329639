"""Smoothing of noisy values at scattered points: kriging that drops outliers one by one."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_NOISE = 0.05  # variance of one measurement, relative to the variance of the field
_LEVEL = 100.0  # variance of the common level, in the same units
_FEWEST = 8
_MOST_OUTLIERS = 0.1
_OUTLIER_SPREADS = 6.0
# An outlier deviates by more than both: in spreads (robust standard deviations) and absolutely.
_LEAST_OUTLIER = 0.1


def smoothed(points: FloatArray, values: FloatArray, wanted: FloatArray) -> FloatArray:
    """Return the field through `values` [n] at `points` [n, d], evaluated at `wanted` [m, d].

    Its covariance is exp(-distance), so coordinates are in units of the correlation length.
    Outliers are found by predicting each value from all others, which kriging has in closed form
    (Rasmussen and Williams, Gaussian Processes for Machine Learning, §5.4.2); the worst is dropped
    first, so that it does not distort its neighbours' predictions.
    """
    covariance = _covariance(points, points) + _NOISE * np.eye(len(points))
    precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    weights = precision @ values
    limit = _limit(weights, precision)
    most = int(_MOST_OUTLIERS * len(points)) if len(points) >= _FEWEST else 0
    kept = np.ones(len(points), dtype=bool)
    for _ in range(most):
        off = np.zeros(len(points))
        off[kept] = np.abs(weights[kept] / np.diag(precision)[kept])
        worst = int(np.argmax(off))
        if off[worst] <= limit:
            break
        kept[worst] = False
        # the inverse without that row and column, by the Schur complement
        column = precision[:, worst].copy()
        precision -= np.outer(column, column / column[worst])
        weights = np.where(kept, precision @ np.where(kept, values, 0.0), 0.0)
    return np.asarray(_covariance(wanted, points) @ weights)


def _limit(weights: FloatArray, precision: FloatArray) -> float:
    spread = 1.4826 * float(np.median(np.abs(weights / np.diag(precision))))
    return max(_LEAST_OUTLIER, _OUTLIER_SPREADS * spread)


def _covariance(left: FloatArray, right: FloatArray) -> FloatArray:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2 * left @ right.T
    return np.asarray(_LEVEL + np.exp(-np.sqrt(np.maximum(squares, 0.0))))
