"""Lengths of requests: fitted to a mean and a deviation, or even between two ends."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SHORTEST, LONGEST = 4, 2048  # Interactive lengths are cut to these


@dataclass(frozen=True, slots=True)
class Fitted:
    """A log-normal length with this mean and standard deviation before it is cut to the limits.

    Raises ValueError unless both are above 0.
    """

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        if not min(self.mean, self.deviation) > 0:
            raise ValueError(f"{self}: needs a mean and a deviation above 0")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """int64 [count]."""
        variance = math.log1p((self.deviation / self.mean) ** 2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return np.clip(np.rint(drawn), SHORTEST, LONGEST).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Even:
    """Every length from `least` to `most` is as likely. Raises ValueError for an empty range."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self}: needs 1 <= least <= most")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """int64 [count]."""
        return rng.integers(self.least, self.most + 1, count)
