"""Popularity: the distribution of demand over models."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def power_law_rates(num_models: int, alpha: float, max_rate: float) -> NDArray[np.float64]:
    """Return [num_models] requests/s: the i-th model (from 1) gets max_rate · i^-alpha.

    MuxServe's synthetic workloads (§4.2): 19 models, alpha 0.7 to 2.1, max_rate 40 · rate scale.
    Raises ValueError without models, for a rate not above 0 or an alpha below 0.
    """
    if num_models < 1 or not 0 < max_rate < np.inf or not 0 <= alpha < np.inf:
        raise ValueError("needs a model, a max_rate above 0 and an alpha from 0 up")
    return np.asarray(max_rate * np.arange(1, num_models + 1, dtype=np.float64) ** -alpha)


def shares(rates: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rates over their sum. Raises ValueError where the sum is 0 or a rate is below 0."""
    found = np.asarray(rates, dtype=np.float64)
    if (found < 0).any() or not 0 < found.sum() < np.inf:
        raise ValueError("needs rates from 0 up that sum to more than 0")
    return np.asarray(found / found.sum())
