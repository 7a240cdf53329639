"""Rates that change in steps, as traces publish them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """rates[i] requests/s from starts_s[i] until the next start, the last for ever.

    Raises ValueError for numbers out of order or without a positive rate.
    """

    starts_s: tuple[float, ...]  # ascending from 0
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        starts = np.asarray(self.starts_s)
        if not (len(starts) and starts[0] == 0 and (np.diff(starts) > 0).all()):
            raise ValueError("starts must ascend from 0")
        if len(self.rates) != len(starts) or min(self.rates) < 0:
            raise ValueError("needs one rate a start, none below 0")

    def at(self, times_s: Floats) -> Floats:
        """Return the rate of the step at each time."""
        steps = np.searchsorted(self.starts_s, times_s, side="right") - 1
        return np.asarray(self.rates, dtype=np.float64)[steps]
