"""The counter-based numbers are uniform, and independent between seeds and counters."""

import numpy as np
from scipy import stats

from muxcluster.engine.sampling.randomness import uniforms


def grid(num_seeds: int, num_counters: int) -> np.ndarray:
    seeds = np.arange(num_seeds, dtype=np.uint64)
    counters = np.arange(num_counters, dtype=np.int64)
    flat = uniforms(np.repeat(seeds, num_counters), np.tile(counters, num_seeds))
    return flat.reshape(num_seeds, num_counters)


def test_uniform_along_counters_and_along_seeds():
    numbers = grid(300, 300)
    assert stats.kstest(numbers[0], "uniform").pvalue > 1e-3
    assert stats.kstest(numbers[:, 0], "uniform").pvalue > 1e-3
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    assert len(np.unique(numbers)) == numbers.size


def test_neighbours_are_uncorrelated():
    numbers = grid(400, 400)
    pairs = [
        (numbers[:-1], numbers[1:]),
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:-1, :-1], numbers[1:, 1:]),
        (numbers[:-1, 1:], numbers[1:, :-1]),
    ]
    for one, other in pairs:
        correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(one.size)


def test_open_interval_and_extreme_seeds():
    seeds = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    for counter in (0, 1, 2**31):
        numbers = uniforms(seeds, np.full(4, counter))
        assert ((numbers > 0) & (numbers < 1)).all()
        assert len(set(numbers)) == 4
