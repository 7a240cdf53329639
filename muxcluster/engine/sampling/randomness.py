"""Counter-based random numbers: token i of a request has its own number in any batch."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return [n] numbers in the open interval (0, 1); each depends only on its (seed, counter)."""
    # The seed is hashed before the counter is added, so that neighbouring seeds do not share
    # stretches of one sequence (SplitMix64, Steele, Lea and Flood, OOPSLA 2014).
    with np.errstate(over="ignore"):
        state = _mix(seeds + _GOLDEN) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        bits = _mix(state) >> np.uint64(12)
    # 52 bits and a half: neither 0 nor 1 can come out.
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
