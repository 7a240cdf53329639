"""Time averages of step functions (SM share in use, KV blocks held)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def step_means(times_s: ArrayLike, values: ArrayLike, edges_s: ArrayLike) -> NDArray[np.float64]:
    """Return [k - 1] time-weighted means between consecutive `edges_s` ([k], ascending).

    times_s, values: [n] changes, times not descending; values[i] holds from times_s[i] until the
    next change, the last one for ever; 0 before the first. Exact: the integral of a step function
    is piecewise linear. Raises ValueError for times or edges out of order.
    """
    times = np.asarray(times_s, dtype=np.float64)
    edges = np.asarray(edges_s, dtype=np.float64)
    if (np.diff(times) < 0).any() or (np.diff(edges) <= 0).any():
        raise ValueError("times may not descend and edges must ascend")
    if not times.size:
        return np.zeros(len(edges) - 1)
    end = max(times[-1], edges[-1])
    levels = np.asarray(values, dtype=np.float64)
    areas = np.concatenate(([0.0], np.cumsum(levels * np.diff(times, append=end))))
    integral = np.interp(edges, np.append(times, end), areas)
    return np.diff(integral) / np.diff(edges)


class StepSeries:
    """Time averages of one value as it changes: 8 bytes per bin, whatever the number of changes.

    `mean` is exact between multiples of `bin_s` (from `start_s` on) and takes the value as constant
    within a bin. The value is 0 until it is first set.
    """

    def __init__(self, bin_s: float, start_s: float = 0.0) -> None:
        if not bin_s > 0:
            raise ValueError(f"bins of {bin_s} s hold no time")
        self._bin_s = bin_s
        self._start_s = start_s
        self._now_s = start_s
        self._value = 0.0
        self._area = 0.0
        self._areas = [0.0]  # integral up to each bin edge passed so far

    def set(self, now_s: float, value: float) -> None:
        """Set the value from now on. Raises ValueError where `now_s` descends."""
        self._advance(now_s)
        self._value = value

    def add(self, now_s: float, change: float) -> None:
        self._advance(now_s)
        self._value += change

    def mean(self, start_s: float, end_s: float) -> float:
        """Return the mean over a span. Raises ValueError unless it is within the recorded time."""
        if not self._start_s <= start_s < end_s <= self._now_s:
            raise ValueError(f"no values from {start_s} to {end_s} s")
        before, after = self._integral(start_s), self._integral(end_s)
        return (after - before) / (end_s - start_s)

    def means(self, now_s: float) -> NDArray[np.float64]:
        """Advance to `now_s`; return [bins] means of the bins that are full by then."""
        self._advance(now_s)
        return np.diff(self._areas) / self._bin_s

    def _advance(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"time runs back from {self._now_s} to {now_s} s")
        edge_s = self._start_s + len(self._areas) * self._bin_s
        while edge_s <= now_s:
            self._area += self._value * (edge_s - self._now_s)
            self._areas.append(self._area)
            self._now_s = edge_s
            edge_s = self._start_s + len(self._areas) * self._bin_s
        self._area += self._value * (now_s - self._now_s)
        self._now_s = now_s

    def _integral(self, time_s: float) -> float:
        edges_s = self._start_s + self._bin_s * np.arange(len(self._areas))
        return float(np.interp(time_s, [*edges_s, self._now_s], [*self._areas, self._area]))
