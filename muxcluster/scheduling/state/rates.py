"""Measured load of one model: request rate and mean length, as moving averages."""

import math


class LoadMeter:
    """Exponentially weighted averages that start from the plan and then only measure.

    rate_per_s: arrivals. mean_tokens: prompt and output tokens of requests that ended.
    The planned values last until the first measurement replaces them; `has_measured` says whether
    one has.
    """

    def __init__(self, rate_per_s: float, mean_tokens: float, time_constant_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.mean_tokens = mean_tokens
        self._time_constant_s = time_constant_s
        self.has_measured = False
        self._arrivals = 0
        self._ends = 0
        self._ended_tokens = 0

    def arrive(self) -> None:
        """A request was accepted."""
        self._arrivals += 1

    def end(self, num_tokens: int) -> None:
        """A request ended with `num_tokens` prompt and output tokens."""
        self._ends += 1
        self._ended_tokens += num_tokens

    def update(self, elapsed_s: float) -> None:
        """Fold in what was counted during the last `elapsed_s` > 0 seconds."""
        weight = 1.0
        if self.has_measured:
            weight = -math.expm1(-elapsed_s / self._time_constant_s)
        self.rate_per_s += weight * (self._arrivals / elapsed_s - self.rate_per_s)
        if self._ends:
            self.mean_tokens += weight * (self._ended_tokens / self._ends - self.mean_tokens)
        self.has_measured = True
        self._arrivals = self._ends = self._ended_tokens = 0
