"""Which column holds which prefix, and which sequences share one.

A key is the chained hash of a block (`core.hashing`), so it names the whole path from the root:
a plain dict of keys is the radix tree over token blocks of one model, and a node is reachable while
all its ancestors are published.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes
from muxcluster.kvcache.tables import ColumnStore, SequenceTable


class PrefixIndex:
    """Published columns of one kind of layers, keyed by chain hash.

    A published column is immutable and full, so sequences of both sides may read it: attention
    takes its tokens in any order. Where it does not, keys differ by side
    (`ModelSpec.is_unordered`). A committed column whose key another column already publishes keeps
    its key as a *spare*. Of layers with a window, a column may stay while those before it are gone.
    """

    def __init__(self) -> None:
        self._published: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def has_first(self, hashes: Sequence[bytes]) -> bool:
        """True where `match` would find some column."""
        return len(hashes) > 0 and hashes[0] in self._published

    def match(self, hashes: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the columns of the longest published prefix of the chain `hashes`, int32 [n]."""
        published = self._published
        columns: list[int] = []
        for key in hashes:
            column = published.get(key)
            if column is None:
                break
            columns.append(column)
        return np.array(columns, dtype=np.int32)

    def match_seen(
        self,
        hashes: Sequence[bytes],
        first_seen: Callable[[int], int],
        is_private: NDArray[np.bool_],
    ) -> tuple[int, NDArray[np.int32]]:
        """Return the longest part of the chain `hashes` that a window can go on from.

        first_seen: the first column that the token after so many columns sees. All from that one on
        must be published, and not private (by column). Returns the place of the first and the
        columns, int32 [n].
        """
        published = self._published
        columns: list[int] = []
        begin = longest = 0  # of the published columns without a gap; of the parts that will do
        for key in hashes:
            column = published.get(key, -1)
            columns.append(column)
            if column < 0 or is_private[column]:
                begin = len(columns)
            elif first_seen(len(columns)) >= begin:
                longest = len(columns)
        first = first_seen(longest)
        return first, np.array(columns[first:longest], dtype=np.int32)

    def holders(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the columns that publish any of `hashes`, in their order."""
        published = self._published
        return [published[key] for key in hashes if key in published]

    def keys(self, columns: Sequence[int]) -> list[bytes | None]:
        """Return the key of each column, None where it has none."""
        return [self._keys.get(column) for column in columns]

    def commit(self, columns: NDArray[np.int32], hashes: Sequence[bytes]) -> None:
        """Give `columns` (int32 [n]) their keys; each is published unless its key is taken."""
        published = self._published
        for column, key in zip(columns.tolist(), hashes, strict=True):
            self._keys[column] = key
            published.setdefault(key, column)

    def retire(self, columns: Sequence[int]) -> list[int | None]:
        """Return which column publishes the key of each of `columns`, whose last reader left.

        None for a column without a key. A spare whose key was evicted meanwhile takes its place;
        one whose key is still published elsewhere loses its key and is to be freed.
        """
        keys, published = self._keys, self._published
        holders: list[int | None] = []
        for column in columns:
            key = keys.get(column)
            holder = None if key is None else published.setdefault(key, column)
            if holder is not None and holder != column:
                del keys[column]
            holders.append(holder)
        return holders

    def forget(self, columns: Sequence[int]) -> None:
        """Drop published columns that were evicted."""
        pop, published = self._keys.pop, self._published
        for column in columns:
            del published[pop(column)]

    def unpublish(self, columns: NDArray[np.int32]) -> None:
        """Drop the keys of `columns` (int32 [n]); a spare of one may be published later."""
        published = self._published
        for column in columns.tolist():
            key = self._keys.pop(column, None)
            if key is not None and published.get(key) == column:
                del published[key]

    def published(self) -> NDArray[np.int32]:
        """All published columns, int32 [n]."""
        return np.array(list(self._published.values()), dtype=np.int32)

    def keyed(self) -> NDArray[np.int32]:
        """All columns with a key, published or spare, int32 [n]."""
        return np.array(list(self._keys), dtype=np.int32)

    def check(self) -> None:
        """Raise AssertionError where the two directions of the index disagree."""
        for key, column in self._published.items():
            assert self._keys.get(column) == key, f"column {column} is published under two keys"


_LEVELS = 8  # nested prefixes that are compared; deeper ones are grouped by the eighth

_Group = tuple[int, int, int]  # first and last place (exclusive) of a group, and its columns


class PrefixGroups:
    """Divides sequences of one model into groups, each of which shares one prefix.

    Column ids are compared: equal tokens that two sequences computed apart are not shared.
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
