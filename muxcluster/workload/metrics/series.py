"""Values that hold until they change (SM share in use, KV blocks held), averaged over time."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def step_means(times_s: ArrayLike, values: ArrayLike, edges_s: ArrayLike) -> NDArray[np.float64]:
    """[k - 1] time-weighted means between consecutive `edges_s` ([k], ascending).

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
    """The same, kept while time runs: 8 bytes a bin however often the value changes.

    bin_s: the resolution. `mean` is exact between multiples of it (from `start_s` on) and takes a
    bin as level inside. The value is 0 until it is first set.
    """

    def __init__(self, bin_s: float, start_s: float = 0.0) -> None:
        if not bin_s > 0:
            raise ValueError(f"bins of {bin_s} s hold no time")
        self._bin_s = bin_s
        self._start_s = start_s
        self._now_s = start_s
        self._value = 0.0
        self._area = 0.0
        self._areas = [0.0]
        """Integral up to each bin edge passed so far."""

    def set(self, now_s: float, value: float) -> None:
        """The value from now on; `now_s` never descends (ValueError)."""
        self._advance(now_s)
        self._value = value

    def add(self, now_s: float, change: float) -> None:
        """Change the value by `change` from now on."""
        self._advance(now_s)
        self._value += change

    def mean(self, start_s: float, end_s: float) -> float:
        """Time-weighted mean of a span within what has passed. Raises ValueError outside it."""
        if not self._start_s <= start_s < end_s <= self._now_s:
            raise ValueError(f"no values from {start_s} to {end_s} s")
        before, after = self._integral(start_s), self._integral(end_s)
        return (after - before) / (end_s - start_s)

    def means(self, now_s: float) -> NDArray[np.float64]:
        """[bins] mean of each bin that is full by `now_s`, which becomes the present."""
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
