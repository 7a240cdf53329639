"""Distributions of one length: constant, log-normal, quantiles, or resampled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
            raise ValueError("a mean and one percentile decide; leave the mean out for several")
        ((percent, value),) = percentiles.items()
        z = NormalDist().inv_cdf(percent / 100.0)
        # ln value = mu + z sigma and ln mean = mu + sigma² / 2; take the narrower solution.
        inside = z * z - 2.0 * math.log(value / mean)
        if inside < 0 or (z <= 0 and value > mean):
            raise ValueError(f"no log-normal distribution of mean {mean} has P{percent} = {value}")
        root = math.sqrt(inside)
        sigma = z - root if z >= root else z + root
        return cls(math.log(mean) - sigma * sigma / 2.0, sigma)

    @classmethod
    def of_percentiles(cls, percentiles: Mapping[float, float]) -> "LogNormal":
        """Fit {percent: value} by least squares on a logarithmic scale.

        Raises ValueError for fewer than two points, or values that fall.
        """
        if len(percentiles) < 2:
            raise ValueError("two percentiles at least")
        z = np.array([NormalDist().inv_cdf(percent / 100.0) for percent in percentiles])
        sigma, mu = np.polyfit(z, np.log(list(percentiles.values())), 1)
        return cls(float(mu), float(sigma))

    @classmethod
    def of_samples(cls, samples: ArrayLike) -> "LogNormal":
        """Fit by maximum likelihood. Raises ValueError without samples or for one below 1."""
        found = np.asarray(samples, dtype=np.float64)
        if not found.size or found.min() < 1:
            raise ValueError("needs samples, each of 1 token at least")
        logs = np.log(found)
        return cls(float(logs.mean()), float(logs.std()))

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw rounded lengths between 1 and the limit."""
        return _tokens(np.minimum(rng.lognormal(self.mu, self.sigma, count), self.most))


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """Resamples lengths with replacement. Raises ValueError without any or for one below 1."""

    seen: Ints

    def __post_init__(self) -> None:
        if not len(self.seen) or self.seen.min() < 1:
            raise ValueError("needs lengths of 1 token at least")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw lengths with equal probability."""
        return self.seen[rng.integers(len(self.seen), size=count)]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Evenly spaced quantiles from 0 to 100 %, linear in between.

    Raises ValueError for fewer than three, falling or negative values.
    """

    values: tuple[float, ...]
    # If given, the last stretch bends so that the whole has this mean if possible: the longest of a
    # million requests says little about the last percent of them.
    mean: float | None = None

    def __post_init__(self) -> None:
        steps = np.diff(self.values)
        if len(self.values) < 3 or (steps < 0).any() or self.values[0] < 0:
            raise ValueError("needs three quantiles at least, from 0 tokens up, none falling")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw from the quantile function, rounded, at least 1."""
        return _tokens(self._at(rng.random(count)))

    def amounts(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw as `draw`, but allow 0: a part of a prompt may be missing."""
        return np.rint(self._at(rng.random(count))).astype(np.int64)

    def _at(self, places: NDArray[np.float64]) -> NDArray[np.float64]:
        stretches = len(self.values) - 1
        place = places * stretches
        found = np.interp(place, np.arange(stretches + 1), self.values)
        is_last = place > stretches - 1
        low, high = self.values[-2:]
        found[is_last] = low + (high - low) * (place[is_last] - (stretches - 1)) ** self._bend()
        return found

    def _bend(self) -> float:
        """Return the power s of the last stretch, whose mean is low + (high - low) / (s + 1)."""
        low, high = self.values[-2:]
        if self.mean is None or high == low:
            return 1.0
        stretches = len(self.values) - 1
        others = sum(
            (a + b) / 2.0 for a, b in zip(self.values[:-2], self.values[1:-1], strict=True)
        )
        share = (self.mean * stretches - others - low) / (high - low)
        return 1.0 / min(max(share, 1e-6), 1.0) - 1.0


def _tokens(lengths: NDArray[np.float64]) -> Ints:
    return np.maximum(np.rint(lengths), 1.0).astype(np.int64)
