"""Groups of sequences with the same first columns, which attention reads once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes
from muxcluster.kvcache.columns import ColumnStore
from muxcluster.kvcache.sequences import SequenceTable

_LEVELS = 8  # nested prefixes that are compared; deeper ones are grouped by the eighth

_Group = tuple[int, int, int]  # first and last place (exclusive) of a group, and its columns


class PrefixGroups:
    """Divides sequences of one model into groups, each of which shares one prefix.

    Column ids are compared: equal tokens that two sequences computed apart are not shared. Sides
    of a block never share a column.
    """

    def __init__(self, columns: ColumnStore, sequences: SequenceTable, min_tokens: int) -> None:
        """min_tokens: length from which a prefix is shared; 0: none ever is."""
        self._columns = columns
        self._sequences = sequences
        self._min_columns = -(-min_tokens // sequences.block_tokens)
        self._is_off = not 0 < self._min_columns <= sequences.max_columns
        self._version = -1
        self._rows = np.empty(0, dtype=np.int32)
        self._found: SharedPrefixes | None = None

    def of(self, rows: NDArray[np.int32]) -> SharedPrefixes | None:
        """Return the groups among `rows` (int32 [n], distinct); None where nothing is shared."""
        if self._is_off:
            return None
        # The last answer is kept: decode steps ask for the same sequences many times.
        version = self._sequences.version
        if version != self._version or not np.array_equal(rows, self._rows):
            self._found = self._find(rows)
            self._rows, self._version = rows, version
        return self._found

    def _readers(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return where the last column of the shortest prefix has another reader, bool [n]."""
        sequences, index = self._sequences, rows.astype(np.intp)
        is_deep = sequences.num_committed[index] >= self._min_columns * sequences.block_tokens
        deepest = sequences.columns[index, self._min_columns - 1]
        is_shared: NDArray[np.bool_] = self._columns.refs[np.where(is_deep, deepest, 0)] > 1
        return is_deep & is_shared

    def _find(self, rows: NDArray[np.int32]) -> SharedPrefixes | None:
        places = self._readers(rows).nonzero()[0]
        if len(places) < 2:
            return None
        order, common = self._sorted(rows[places])
        _, groups = _best(common, 0, len(places), self._min_columns, _LEVELS)
        if not groups:
            return None
        leaders, tokens = rows.copy(), np.zeros(len(rows), dtype=np.int32)
        for first, last, columns in groups:
            members = places[order[first:last]]
            leaders[members] = rows[members[0]]
            tokens[members] = columns * self._sequences.block_tokens
        return SharedPrefixes(leaders, tokens)

    def _sorted(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Sort sequences that share columns side by side.

        Returns the order, int [n], and the columns each has in common with the next, int [n - 1].
        """
        sequences = self._sequences
        depths = sequences.num_committed[rows] // sequences.block_tokens
        steps = np.arange(int(depths.max()))
        # Columns not committed are not shared: a number of its own ends what is common.
        own = -1 - np.arange(len(rows), dtype=np.int32)
        columns = sequences.columns[rows][:, : len(steps)]
        table = np.where(steps < depths[:, None], columns, own[:, None])
        keys = [each.tobytes() for each in table]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)
        differs = table[order[1:]] != table[order[:-1]]
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), len(steps))
        return order, common


def _best(
    common: NDArray[np.intp], start: int, stop: int, least: int, levels: int
) -> tuple[int, Sequence[_Group]]:
    """Return the columns saved, and the groups, of places start to stop, as one group or several.

    common: int [n - 1], columns that each shares with the next in sorted order. least: fewest
    columns of a group. Every prefix of a sequence is a candidate (BatchLLM §4.1, one level), but a
    sequence stays with all that share the next longer one.
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
