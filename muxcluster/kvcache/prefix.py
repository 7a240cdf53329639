"""Which column holds which prefix: the radix tree over token blocks of one model.

A key is the chained hash of a block (`core.hashing`), so it names the whole path from the root:
a plain dict of keys is the tree, and a node is reachable while all its ancestors are published.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.pool import OWNER_BIT


class PrefixIndex:
    """Published columns of one model, keyed by chain hash, apart for each side.

    A published column is immutable. Sides do not share: they lay tokens out in opposite order.
    A committed column whose key another column already publishes keeps its key as a *spare*.
    """

    def __init__(self) -> None:
        self._published: dict[int, dict[bytes, int]] = {bit: {} for bit in OWNER_BIT.values()}
        self._keys: dict[int, bytes] = {}

    def has_first(self, hashes: Sequence[bytes], owner: int) -> bool:
        """True where `match` would find some column."""
        return len(hashes) > 0 and hashes[0] in self._published[owner]

    def match(self, hashes: Sequence[bytes], owner: int) -> NDArray[np.int32]:
        """Return the columns of the longest published prefix of the chain `hashes`, int32 [n]."""
        published = self._published[owner]
        columns: list[int] = []
        for key in hashes:
            column = published.get(key)
            if column is None:
                break
            columns.append(column)
        return np.array(columns, dtype=np.int32)

    def holders(self, hashes: Sequence[bytes], owner: int) -> list[int]:
        """Return the columns that publish any of `hashes`, in their order."""
        published = self._published[owner]
        return [published[key] for key in hashes if key in published]

    def keys(self, columns: Sequence[int]) -> list[bytes | None]:
        """Return the key of each column, None where it has none."""
        return [self._keys.get(column) for column in columns]

    def commit(self, columns: NDArray[np.int32], hashes: Sequence[bytes], owner: int) -> None:
        """Give `columns` (int32 [n]) their keys; each is published unless its key is taken."""
        published = self._published[owner]
        for column, key in zip(columns.tolist(), hashes, strict=True):
            self._keys[column] = key
            published.setdefault(key, column)

    def retire(self, columns: Sequence[int], owner: int) -> list[int | None]:
        """Return which column publishes the key of each of `columns`, whose last reader left.

        None for a column without a key. A spare whose key was evicted meanwhile takes its place;
        one whose key is still published elsewhere loses its key and is to be freed.
        """
        keys, published = self._keys, self._published[owner]
        holders: list[int | None] = []
        for column in columns:
            key = keys.get(column)
            holder = None if key is None else published.setdefault(key, column)
            if holder is not None and holder != column:
                del keys[column]
            holders.append(holder)
        return holders

    def forget(self, columns: Sequence[int], owners: Sequence[int]) -> None:
        """Drop published columns that were evicted."""
        pop, published = self._keys.pop, self._published
        for column, owner in zip(columns, owners, strict=True):
            del published[owner][pop(column)]

    def unpublish(self, columns: NDArray[np.int32], owner: int) -> None:
        """Drop the keys of `columns` (int32 [n]); a spare of one may be published later."""
        published = self._published[owner]
        for column in columns.tolist():
            key = self._keys.pop(column, None)
            if key is not None and published.get(key) == column:
                del published[key]

    def published(self, owner: int) -> NDArray[np.int32]:
        """All published columns of a side, int32 [n]."""
        return np.array(list(self._published[owner].values()), dtype=np.int32)

    def keyed(self) -> NDArray[np.int32]:
        """All columns with a key, published or spare, int32 [n]."""
        return np.array(list(self._keys), dtype=np.int32)

    def check(self) -> None:
        """Raise AssertionError where the two directions of the index disagree."""
        for published in self._published.values():
            for key, column in published.items():
                assert self._keys.get(column) == key, f"column {column} is published under two keys"
