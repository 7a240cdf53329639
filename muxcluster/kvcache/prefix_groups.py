"""Which sequences read the same columns first: groups whose prefix attention reads once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes
from muxcluster.kvcache.columns import ColumnStore
from muxcluster.kvcache.sequences import SequenceTable

_LEVELS = 8
"""Most prefixes inside one another that are compared; deeper ones are grouped by the eighth."""

_Group = tuple[int, int, int]
"""The first and the last row (exclusive) of a group, and its columns."""


class PrefixGroups:
    """Divides sequences of one model into groups, each of which shares one prefix.

    Only the columns themselves are compared: what two sequences computed apart is not shared,
    though the tokens be equal. Sides of a block never share a column.
    """

    def __init__(self, columns: ColumnStore, sequences: SequenceTable, min_tokens: int) -> None:
        """min_tokens: a prefix is shared from so many tokens on; 0: none ever is."""
        self._columns = columns
        self._sequences = sequences
        self._min_columns = -(-min_tokens // sequences.block_tokens)
        self._is_off = not 0 < self._min_columns <= sequences.max_columns
        self._version = -1
        self._slots = np.empty(0, dtype=np.int32)
        self._found: SharedPrefixes | None = None

    def of(self, slots: NDArray[np.int32]) -> SharedPrefixes | None:
        """The groups among `slots` (int32 [n], distinct); None where nothing is shared.

        The last answer is kept: decode steps ask for the same sequences many times.
        """
        if self._is_off:
            return None
        version = self._sequences.version
        if version != self._version or not np.array_equal(slots, self._slots):
            self._found = self._find(slots)
            self._slots, self._version = slots, version
        return self._found

    def _readers(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """bool [n]: the last column of the shortest prefix has another reader."""
        sequences, places = self._sequences, slots.astype(np.intp)
        is_deep = sequences.num_committed[places] >= self._min_columns * sequences.block_tokens
        deepest = sequences.columns[places, self._min_columns - 1]
        is_shared: NDArray[np.bool_] = self._columns.refs[np.where(is_deep, deepest, 0)] > 1
        return is_deep & is_shared

    def _find(self, slots: NDArray[np.int32]) -> SharedPrefixes | None:
        rows = self._readers(slots).nonzero()[0]
        if len(rows) < 2:
            return None
        order, common = self._sorted(slots[rows])
        _, groups = _best(common, 0, len(rows), self._min_columns, _LEVELS)
        if not groups:
            return None
        leaders, tokens = slots.copy(), np.zeros(len(slots), dtype=np.int32)
        for first, last, columns in groups:
            members = rows[order[first:last]]
            leaders[members] = slots[members[0]]
            tokens[members] = columns * self._sequences.block_tokens
        return SharedPrefixes(leaders, tokens)

    def _sorted(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """An order in which those that share columns are neighbours, and how many columns each
        has in common with the next; int [n] and [n - 1]."""
        sequences = self._sequences
        depths = sequences.num_committed[slots] // sequences.block_tokens
        steps = np.arange(int(depths.max()))
        # What is not committed is nobody else's: a number of its own ends what is common.
        nobodys = -1 - np.arange(len(slots), dtype=np.int32)
        columns = sequences.columns[slots][:, : len(steps)]
        table = np.where(steps < depths[:, None], columns, nobodys[:, None])
        keys = [row.tobytes() for row in table]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)
        differs = table[order[1:]] != table[order[:-1]]
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), len(steps))
        return order, common


def _best(
    common: NDArray[np.intp], start: int, stop: int, least: int, levels: int
) -> tuple[int, Sequence[_Group]]:
    """Columns saved, and the groups, of rows start to stop: one group, or the best of its parts.

    common: int [n - 1], columns that a row shares with the next one, in the order of the rows.
    least: fewest columns of a group. Every prefix above a row is a candidate (BatchLLM §4.1, one
    level), but a row stays with all that share the next longer one.
    """
    inner = common[start : stop - 1]
    if not len(inner):
        return 0, ()
    depth = int(inner.min())
    saved, groups = (depth * len(inner), [(start, stop, depth)]) if depth >= least else (0, [])
    cuts = (inner == depth).nonzero()[0]
    if levels == 0 or len(cuts) == len(inner):
        return saved, groups
    bounds = [start, *(start + 1 + cuts).tolist(), stop]
    parts = [
        _best(common, first, last, least, levels - 1)
        for first, last in zip(bounds[:-1], bounds[1:], strict=True)
        if last - first > 1
    ]
    parts_saved = sum(part for part, _ in parts)
    if parts_saved <= saved:
        return saved, groups
    return parts_saved, [group for _, found in parts for group in found]
