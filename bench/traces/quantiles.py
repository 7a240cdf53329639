"""A distribution of lengths by its quantiles, as traces publish them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.workload.marginals import Ints


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
        return np.maximum(self.amounts(rng, count), 1)

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
