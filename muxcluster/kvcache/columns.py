"""The columns of one model: their blocks and how many sequences read each."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.free_ids import IdStack


class ColumnStore:
    """Columns (one token block over all layers and KV heads) of one model.

    blocks: int32 [num_columns, num_ids], layer-major block ids; num_ids is blocks_per_column, or 0
        where blocks are counted and have no ids.
    refs: int32 [num_columns], live sequences whose table holds the column.
    owners: uint8 [num_columns], owner bit of the side it was filled from, 0 for a free column.
    """

    def __init__(
        self, num_columns: int, blocks_per_column: int, *, has_block_ids: bool = True
    ) -> None:
        self.blocks_per_column = blocks_per_column
        self.num_ids = blocks_per_column if has_block_ids else 0
        self.blocks = np.zeros((num_columns, self.num_ids), dtype=np.int32)
        self.refs = np.zeros(num_columns, dtype=np.int32)
        self.owners = np.zeros(num_columns, dtype=np.uint8)
        self._free = IdStack(num_columns)

    def add(self, blocks: NDArray[np.int32], owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """New columns with one reader each; blocks int32 [n, num_ids], owners [n]."""
        columns = self._free.take(len(blocks))
        places = columns.astype(np.intp)  # once: numpy would convert at each use
        self.blocks[places] = blocks
        self.owners[places] = owners
        self.refs[places] = 1
        return columns

    def remove(
        self, columns: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8] | np.uint8]:
        """Forget unread columns (at least one); their block ids and owner bits, both [n * num_ids].

        One bit where all have the same: most have, and to spread it over the blocks takes longer.
        """
        places = columns.astype(np.intp)
        assert not np.count_nonzero(self.refs[places]), "a column with readers is removed"
        blocks = self.blocks[places].ravel()
        owners = self.owners[places]
        self.owners[places] = 0
        self._free.give(columns)
        if np.count_nonzero(owners == owners[0]) == len(owners):
            return blocks, owners[0]
        return blocks, owners.repeat(self.num_ids)

    def attach(self, columns: NDArray[np.int32]) -> None:
        """One more reader for each of `columns` (distinct)."""
        self.refs[columns] += 1

    def detach(self, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """One reader less for each of `columns` (distinct); True where none is left, [n]."""
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
