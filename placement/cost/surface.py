"""Seconds over (SM share, batch, tokens): a grid that is monotone, interpolated and extended."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


_ROUNDS = 8


def monotone(seconds: FloatArray) -> FloatArray:
    """The grid nearest to `seconds`, in logarithms, that falls along axis 0 (SM share) and rises
    along 1 and 2 (batch, tokens).

    Dykstra's alternating projections, stopped early; what is left to mend is cut to the mean of the
    greatest value that must not exceed a cell's and the least that must not be below it.
    """
    logs = np.log(seconds)[::-1]
    owed = [np.zeros_like(logs) for _ in range(3)]
    for _ in range(_ROUNDS):
        for axis in range(3):
            before = logs + owed[axis]
            logs = _rising(before, axis)
            owed[axis] = before - logs
    return np.asarray(np.exp(_cut(logs))[::-1])


def _rising(values: FloatArray, axis: int) -> FloatArray:
    """Isotonic regression of every line along `axis`: max over i ≤ k of min over j ≥ k of the mean
    of values i to j."""
    lines = np.moveaxis(values, axis, -1)
    size = lines.shape[-1]
    sums = np.concatenate((np.zeros((*lines.shape[:-1], 1)), np.cumsum(lines, axis=-1)), axis=-1)
    first, last = np.arange(size)[:, None], np.arange(size)
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / np.maximum(last - first + 1, 1)
    means = np.where(last >= first, means, np.inf)
    least = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    least = np.where(last >= first, least, -np.inf)
    return np.moveaxis(least.max(axis=-2), -1, axis)


def _cut(values: FloatArray) -> FloatArray:
    above, below = values, values[::-1, ::-1, ::-1]
    for axis in range(3):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.minimum.accumulate(below, axis=axis)
    return np.asarray((above + below[::-1, ::-1, ::-1]) / 2)


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
        seconds: FloatArray,
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
