"""Seconds over (SM share, batch, tokens): a monotone grid, interpolated and extrapolated."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


_ROUNDS = 8


def monotone(seconds: FloatArray) -> FloatArray:
    """Return the grid nearest to `seconds`, in logarithms, that falls along axis 0 (SM share) and
    rises along 1 and 2 (batch, tokens).

    Dykstra's alternating projections, stopped early; remaining violations are cut to the mean of
    the greatest value that must not exceed a cell's and the least that must not be below it.
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

    __slots__ = ("_batches", "_cells", "_inner_batches", "_inner_tokens", "_shares", "_tokens")

    def __init__(
        self,
        shares: Sequence[float],
        batches: Sequence[float],
        tokens: Sequence[float],
        seconds: FloatArray,
    ) -> None:
        self._shares = tuple(shares)
        self._batches, self._inner_batches = (batches[0], batches[-1]), tuple(batches[1:-1])
        self._tokens, self._inner_tokens = (tokens[0], tokens[-1]), tuple(tokens[1:-1])
        self._cells = tuple(
            tuple(tuple(_Cell(*each) for each in row) for row in layer)
            for layer in _coefficients(batches, tokens, seconds).tolist()
        )

    def seconds(self, share: float, batch: float, tokens: float) -> float:
        """Seconds at any positive share, batch and tokens."""
        batch, factor = _within(batch, *self._batches)
        tokens, longer = _within(tokens, *self._tokens)
        factor *= longer
        row = bisect_right(self._inner_batches, batch)
        column = bisect_right(self._inner_tokens, tokens)
        layer = bisect_right(self._shares, share)
        if layer == 0:
            factor *= self._shares[0] / share
            return factor * _at(self._cells[0][row][column], batch, tokens)
        below = self._shares[layer - 1]
        slow = _at(self._cells[layer - 1][row][column], batch, tokens)
        if share == below or layer == len(self._shares):
            return factor * slow
        fast = _at(self._cells[layer][row][column], batch, tokens)
        part = (1 / below - 1 / share) / (1 / below - 1 / self._shares[layer])
        return factor * (slow + (fast - slow) * part)


class _Cell(NamedTuple):
    """Seconds between two neighbouring batches and two lengths, by the distance from the first."""

    batch: float
    tokens: float
    seconds: float
    per_batch: float
    per_token: float
    per_both: float


def _at(cell: _Cell, batch: float, tokens: float) -> float:
    first_batch, first_tokens, seconds, per_batch, per_token, per_both = cell
    longer = tokens - first_tokens
    slope = per_batch + per_both * longer
    return seconds + per_token * longer + slope * (batch - first_batch)


def _within(value: float, least: float, most: float) -> tuple[float, float]:
    """Return (the value clipped to the range, the factor by which it exceeds it)."""
    if value > most:
        return most, value / most
    return (value if value > least else least), 1.0


def _coefficients(
    batches: Sequence[float], tokens: Sequence[float], seconds: FloatArray
) -> FloatArray:
    """[shares, batches - 1, tokens - 1, 6]: the fields of the cells."""
    rows, columns = np.asarray(batches)[:, None], np.asarray(tokens)
    per_batch = np.diff(seconds, axis=1) / np.diff(rows, axis=0)
    per_token = np.diff(seconds, axis=2) / np.diff(columns)
    per_both = np.diff(per_batch, axis=2) / np.diff(columns)
    fields = (
        rows[:-1],
        columns[:-1],
        seconds[:, :-1, :-1],
        per_batch[:, :, :-1],
        per_token[:, :-1],
        per_both,
    )
    return np.stack(np.broadcast_arrays(*fields), axis=-1)
