"""Distributions of one length: constant or log-normal."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Marginal(Protocol):
    """A distribution of whole numbers of tokens."""

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Return int64 [count], all at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant length. Raises ValueError below 1."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"lengths are 1 token at least, found {self.tokens}")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Return the constant; takes nothing from `rng`."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal variable, rounded. Raises ValueError for sigma below 0 or a limit below 1."""

    mu: float  # mean of the logarithm
    sigma: float  # deviation of the logarithm
    most: int = 2**31 - 1  # longer draws are cut to it

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and 0 <= self.sigma < math.inf and self.most >= 1):
            raise ValueError(f"{self}: needs a finite mu, a sigma from 0 up, a limit from 1 up")

    @classmethod
    def of_mean(cls, mean: float, percentiles: Mapping[float, float]) -> "LogNormal":
        """Return the distribution with this mean and one percentile, such as {50: median}.

        Raises ValueError where there is no such distribution.
        """
        if len(percentiles) != 1:
            raise ValueError("a mean and one percentile decide")
        ((percent, value),) = percentiles.items()
        z = NormalDist().inv_cdf(percent / 100.0)
        # ln value = mu + z sigma and ln mean = mu + sigma² / 2; take the narrower solution.
        inside = z * z - 2.0 * math.log(value / mean)
        if inside < 0 or (z <= 0 and value > mean):
            raise ValueError(f"no log-normal distribution of mean {mean} has P{percent} = {value}")
        root = math.sqrt(inside)
        sigma = z - root if z >= root else z + root
        return cls(math.log(mean) - sigma * sigma / 2.0, sigma)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw rounded lengths between 1 and the limit."""
        return _tokens(np.minimum(rng.lognormal(self.mu, self.sigma, count), self.most))


def _tokens(lengths: NDArray[np.float64]) -> Ints:
    return np.maximum(np.rint(lengths), 1.0).astype(np.int64)
