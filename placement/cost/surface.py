"""Seconds over (SM share, batch, tokens): a grid that is monotone, interpolated and extended."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def monotone(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest grid, in a sense, that falls along axis 0 (share) and rises along 1 and 2.

    Of each cell, the geometric mean of the greatest that must not exceed it and the least that must
    not be below it: both are monotone, and equal where the grid is.
    """
    logs = np.log(seconds)[::-1]
    above, below = logs, logs[::-1, ::-1, ::-1]
    for axis in range(3):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.minimum.accumulate(below, axis=axis)
    return np.asarray(np.exp((above + below[::-1, ::-1, ::-1]) / 2)[::-1])


class Surface:
    """A job's seconds, non-increasing in the SM share, non-decreasing in batch and tokens.

    shares, batches, tokens: knots, ascending. seconds: [shares, batches, tokens], positive and
    monotone. Between knots seconds are linear in batch and tokens (bytes and FLOPs are) and in
    1 / share; beyond the last ones they grow in proportion, below the first they stay.
    """

    __slots__ = ("_batches", "_inverses", "_seconds", "_shares", "_tokens")

    def __init__(
        self,
        shares: Sequence[float],
        batches: Sequence[float],
        tokens: Sequence[float],
        seconds: NDArray[np.float64],
    ) -> None:
        self._shares = list(shares)
        self._inverses = [1 / share for share in shares]
        self._batches = list(batches)
        self._tokens = list(tokens)
        self._seconds: list[list[list[float]]] = seconds.tolist()

    def seconds(self, share: float, batch: float, tokens: float) -> float:
        """At any positive share, batch and tokens."""
        batches, lengths, shares = self._batches, self._tokens, self._shares
        factor = max(1.0, batch / batches[-1]) * max(1.0, tokens / lengths[-1])
        row, row_part = _place(batches, batch)
        column, column_part = _place(lengths, tokens)
        layer = bisect_right(shares, share)
        if layer == 0:
            factor *= shares[0] / share
            return factor * _bilinear(self._seconds[0], row, row_part, column, column_part)
        slow = _bilinear(self._seconds[layer - 1], row, row_part, column, column_part)
        if layer == len(shares) or share == shares[layer - 1]:
            return factor * slow
        fast = _bilinear(self._seconds[layer], row, row_part, column, column_part)
        low, high = self._inverses[layer - 1], self._inverses[layer]
        return factor * (slow + (fast - slow) * (low - 1 / share) / (low - high))


def _place(knots: Sequence[float], value: float) -> tuple[int, float]:
    """(knot at or below, part of the way to the next one); at least two knots."""
    index = min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
    part = (value - knots[index]) / (knots[index + 1] - knots[index])
    return index, min(1.0, max(0.0, part))


def _bilinear(
    grid: Sequence[Sequence[float]], row: int, row_part: float, column: int, column_part: float
) -> float:
    upper, lower = grid[row], grid[row + 1]
    first = upper[column] * (1 - column_part) + upper[column + 1] * column_part
    second = lower[column] * (1 - column_part) + lower[column + 1] * column_part
    return first * (1 - row_part) + second * row_part
