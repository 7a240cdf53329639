"""Peak KV of running requests, from what they hold and how much longer they run."""

import numpy as np
from numpy.typing import NDArray

# Means of the four quarters of an exponential distribution of mean 1: the remaining time of a
# request of unknown length takes each of these values with equal chance.
_LIVES = np.array((0.13, 0.47, 0.98, 2.08))


def peak_tokens(
    held: NDArray[np.float64], left: NDArray[np.float64], is_sure: NDArray[np.bool_]
) -> float:
    """Return the most tokens that these requests will hold together, if no others start.

    Each gets a token a step and frees all when it ends. held: float64 [n], tokens that each holds.
    left: float64 [n], output tokens to come. is_sure: bool [n], True where `left` is known; else it
    is the mean of an exponential distribution.
    """
    if not len(held):
        return 0.0
    ends = np.concatenate((left[is_sure], np.outer(left[~is_sure], _LIVES).ravel()))
    count = len(_LIVES)
    weights = np.concatenate(
        (
            np.ones(np.count_nonzero(is_sure)),
            np.full(len(ends) - np.count_nonzero(is_sure), 1 / count),
        )
    )
    amounts = np.concatenate((held[is_sure], np.repeat(held[~is_sure], count)))
    latest = np.argsort(-ends, kind="stable")
    alive, kept = np.cumsum(weights[latest]), np.cumsum((weights * amounts)[latest])
    return float(max(held.sum(), (kept + alive * ends[latest]).max()))
