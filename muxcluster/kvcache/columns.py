"""The columns of one model: their blocks and how many sequences read each."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.pool import IdStack


class ColumnStore:
    """Columns (one token block over all layers and KV heads) of one model."""

    def __init__(
        self, num_columns: int, blocks_per_column: int, *, has_block_ids: bool = True
    ) -> None:
        self.blocks_per_column = blocks_per_column
        self.num_ids = blocks_per_column if has_block_ids else 0
        self.blocks = np.zeros((num_columns, self.num_ids), dtype=np.int32)  # ids, layer-major
        self.refs = np.zeros(num_columns, dtype=np.int32)  # live sequences that read the column
        # Owner bit of the side it was filled from, 0 for a free column.
        self.owners = np.zeros(num_columns, dtype=np.uint8)
        self._free = IdStack(num_columns)

    def add(self, blocks: NDArray[np.int32], owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return new columns with one reader each; blocks int32 [n, num_ids], owners [n]."""
        columns = self._free.take(len(blocks))
        places = columns.astype(np.intp)  # once: numpy would convert at each use
        self.blocks[places] = blocks
        self.owners[places] = owners
        self.refs[places] = 1
        return columns

    def remove(
        self, columns: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8] | np.uint8]:
        """Remove unread columns (at least one); return block ids and owner bits, [n * num_ids].

        The owner is one bit where all columns have the same.
        """
        places = columns.astype(np.intp)
        assert not np.count_nonzero(self.refs[places]), "a column with readers is removed"
        blocks = self.blocks[places].ravel()
        owners = self.owners[places]
        self.owners[places] = 0
        self._free.give(columns)
        if np.count_nonzero(owners == owners[0]) == len(owners):
            return blocks, owners[0]  # most often, and faster than to repeat it
        return blocks, owners.repeat(self.num_ids)

    def attach(self, columns: NDArray[np.int32]) -> None:
        """Add a reader to each of `columns` (distinct)."""
        self.refs[columns] += 1

    def detach(self, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Remove a reader from each of `columns` (distinct); return where none is left, [n]."""
        places = columns.astype(np.intp)
        refs = self.refs[places] - 1
        self.refs[places] = refs
        unread: NDArray[np.bool_] = refs == 0
        return unread

    def check(self) -> None:
        """Raise AssertionError where free columns and owner bits disagree."""
        self._free.check()
        assert not self.owners[self._free.ids].any(), "a live column is on the free list"
        assert np.count_nonzero(self.owners) + len(self._free) == len(self.owners), "column lost"
        assert not self.refs[self.owners == 0].any(), "a free column has readers"
        assert (self.refs >= 0).all(), "a column has a negative number of readers"
