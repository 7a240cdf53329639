"""Rates that change with the time of day."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DAY_S = 86_400.0


class Curve(Protocol):
    """A rate over time, requests/s."""

    @property
    def peak(self) -> float:
        """Return the highest rate, above 0."""
        ...

    def at(self, times_s: Floats) -> Floats:
        """Return the rate at each of `times_s` ([n], from 0 on)."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """rates[i] from starts_s[i] until the next start; the last for ever, or repeated each period.

    Raises ValueError for numbers out of order or without a positive rate.
    """

    starts_s: tuple[float, ...]  # ascending from 0
    rates: tuple[float, ...]
    period_s: float | None = None  # None: no repetition

    def __post_init__(self) -> None:
        starts = np.asarray(self.starts_s)
        ends = np.inf if self.period_s is None else self.period_s
        if not (len(starts) and starts[0] == 0 and (np.diff(starts, append=ends) > 0).all()):
            raise ValueError("starts must ascend from 0 and lie inside the period")
        if len(self.rates) != len(starts) or min(self.rates) < 0 or not 0 < self.peak < np.inf:
            raise ValueError("needs one rate a start, none below 0 and one above")

    @property
    def peak(self) -> float:
        """Return the highest rate."""
        return max(self.rates)

    def at(self, times_s: Floats) -> Floats:
        """Return the rate of the step at each time."""
        times = times_s if self.period_s is None else np.mod(times_s, self.period_s)
        steps = np.searchsorted(self.starts_s, times, side="right") - 1
        return np.asarray(self.rates, dtype=np.float64)[steps]

    def scaled(self, factor: float) -> "Steps":
        """Return the same steps at `factor` times the rates."""
        return Steps(self.starts_s, tuple(factor * rate for rate in self.rates), self.period_s)


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """mean · (1 + swing · sin(2π · (t + phase_s) / period_s)).

    Raises ValueError for a mean or period not above 0, or a swing outside 0 to 1.
    """

    mean: float
    swing: float  # 0 to 1
    period_s: float = DAY_S
    phase_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.mean < np.inf and 0 <= self.swing <= 1 and self.period_s > 0):
            raise ValueError(f"{self}: needs mean and period above 0, swing from 0 to 1")

    @property
    def peak(self) -> float:
        """Return the highest rate."""
        return self.mean * (1.0 + self.swing)

    def at(self, times_s: Floats) -> Floats:
        """Return the rate at each time."""
        turns = (times_s + self.phase_s) / self.period_s
        return np.asarray(self.mean * (1.0 + self.swing * np.sin(2.0 * np.pi * turns)))
