"""Arrival processes: they yield ascending times, in arrays."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CHUNK = 4096  # times per array; the times do not depend on it


class Process(Protocol):
    """An arrival process."""

    def times(self, rng: np.random.Generator, end_s: float) -> Iterator[Floats]:
        """Yield arrays of ascending seconds from 0 on, all below `end_s`."""
        ...


def _before(end_s: float, chunks: Iterator[Floats]) -> Iterator[Floats]:
    """Cut endless `chunks`, none empty, at `end_s`."""
    for times in chunks:
        if times[-1] >= end_s:
            yield times[: np.searchsorted(times, end_s)]
            return
        yield times


def _checked_rate(rate_per_s: float) -> None:
    if not (0 < rate_per_s < np.inf):
        raise ValueError(f"expected a rate above 0 requests/s, found {rate_per_s}")


@dataclass(frozen=True, slots=True)
class Deterministic:
    """Evenly spaced, the first after half a gap. Raises ValueError for a rate not above 0."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _checked_rate(self.rate_per_s)

    def times(self, rng: np.random.Generator, end_s: float) -> Iterator[Floats]:
        """Yield (k + 1/2) / rate; takes nothing from `rng`."""
        return _before(end_s, self._endless())

    def _endless(self) -> Iterator[Floats]:
        for start in count(0, CHUNK):
            index = np.arange(start, start + CHUNK, dtype=np.float64)
            yield (index + 0.5) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma-distributed gaps with coefficient of variation `cv`; 1 is Poisson, more is burstier.

    Stationary: the first gap is the rest of a gap that contains 0, so that every span of length T
    has rate · T arrivals on average. With one seed, another rate only scales the times. Raises
    ValueError unless rate and cv are above 0.
    """

    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        _checked_rate(self.rate_per_s)
        if not (0 < self.cv < np.inf):
            raise ValueError(f"expected a coefficient of variation above 0, found {self.cv}")

    def times(self, rng: np.random.Generator, end_s: float) -> Iterator[Floats]:
        """Yield running sums of gaps."""
        return _before(end_s, self._endless(rng))

    def _endless(self, rng: np.random.Generator) -> Iterator[Floats]:
        shape = self.cv**-2
        # The gap at a random moment is longer, gamma(shape + 1), and the moment uniform in it.
        now = rng.random() * rng.gamma(shape + 1.0) / shape
        while True:
            after = now + np.cumsum(rng.gamma(shape, 1.0 / shape, CHUNK))
            yield np.concatenate(([now], after[:-1])) / self.rate_per_s
            now = after[-1]


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals. Raises ValueError for a rate not above 0."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _checked_rate(self.rate_per_s)

    def times(self, rng: np.random.Generator, end_s: float) -> Iterator[Floats]:
        """Yield running sums of exponential gaps; as in `Gamma`, another rate only scales them."""
        return _before(end_s, self._endless(rng))

    def _endless(self, rng: np.random.Generator) -> Iterator[Floats]:
        now = 0.0
        while True:
            chunk = now + np.cumsum(rng.exponential(1.0, CHUNK))
            now = chunk[-1]
            yield chunk / self.rate_per_s
