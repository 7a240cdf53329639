"""The lent columns of one model, and its columns that lie over lent blocks."""

import numpy as np
from numpy.typing import NDArray

NO_BLOCK = -1  # in a lent column: the block is gone; its tokens, if any, are in its host block


class LentColumns:
    """Lent columns of one model's sequences. `LentState` alone changes it."""

    def __init__(self, max_seqs: int, shape: tuple[int, int], most_empty: int) -> None:
        """shape: columns of the model, and blocks in each."""
        num_columns, _ = shape
        # Lent and restoring columns without tokens, and their limit: host memory bounds others.
        self.num_empty, self.most_empty = 0, most_empty
        # By sequence:
        # lent columns at the end of its table, with kept ones among them; 0 for a whole sequence
        self.counts = np.zeros(max_seqs, dtype=np.int32)
        self.costs = np.zeros(max_seqs, dtype=np.int32)  # blocks of them that are gone or taken
        self.num_saving = np.zeros(max_seqs, dtype=np.int16)  # running jobs that save its tokens
        self.is_restoring = np.zeros(max_seqs, dtype=np.bool_)  # a running job restores it
        self.is_spoiled = np.zeros(max_seqs, dtype=np.bool_)  # a save of it failed
        # By column, valid for lent ones:
        self.rows = np.zeros(num_columns, dtype=np.int32)  # row of its sequence
        self.filled = np.zeros(num_columns, dtype=np.int32)  # tokens in it
        # not lent although columns after it were: it lies over tokens of others
        self.is_kept = np.zeros(num_columns, dtype=np.bool_)
        self.host_blocks = np.zeros(shape, dtype=np.int32)  # of each block, where it has tokens

    @property
    def spare_empty(self) -> int:
        """How many more columns without tokens may be lent."""
        return self.most_empty - self.num_empty

    def is_busy(self, row: int) -> bool:
        """True while copies of the sequence are on their way, or lost."""
        return bool(self.num_saving[row] or self.is_restoring[row] or self.is_spoiled[row])

    def places(
        self, columns: NDArray[np.int32], block_tokens: int, *, is_left: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the first filled place and the end of lent `columns` of one side, int32 [n]."""
        filled = self.filled[columns]
        if is_left:
            return np.zeros_like(filled), filled
        return block_tokens - filled, np.full_like(filled, block_tokens)

    def host_blocks_of(self, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the host blocks that lent `columns` hold, int32 [n]."""
        return self.host_blocks[columns[self.filled[columns] > 0]].ravel()

    def count_empty(self, columns: NDArray[np.int32]) -> int:
        """Count those of lent `columns` (int32 [n]) that have no tokens."""
        return int(np.count_nonzero(self.filled[columns] == 0))

    def lend(
        self,
        row: int,
        columns: NDArray[np.int32],
        filled: NDArray[np.int64],
        is_kept: NDArray[np.bool_],
    ) -> None:
        """Lend the last whole `columns` of a sequence, all [n]."""
        self.rows[columns], self.filled[columns] = row, filled
        self.is_kept[columns] = is_kept
        self.counts[row] += len(columns)
        self.num_empty += int(np.count_nonzero(filled == 0))

    def forget(self, row: int) -> None:
        """Forget a sequence that is closed."""
        self.counts[row] = self.costs[row] = self.num_saving[row] = 0
        self.is_spoiled[row] = False


class ColumnsOverLent:
    """The columns of one model's left sequences that lie over lent blocks, one entry each, [n]."""

    def __init__(self, max_seqs: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ends = np.zeros(max_seqs, dtype=np.int32)
        self.rows = np.empty(0, dtype=np.int32)  # whose column
        self.positions = np.empty(0, dtype=np.int32)  # where in its table
        self.columns = np.empty(0, dtype=np.int32)
        # Tokens that the column may hold before more must be saved, a lower bound. An entry stays
        # until they are passed or its sequence ends, also when the lenders are gone.
        self.safe = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, rows: NDArray[np.int32], positions: NDArray[np.int32], columns: NDArray[np.int32]
    ) -> None:
        """Add entries in which no token is known to be safe."""
        self.rows = np.concatenate((self.rows, rows))
        self.positions = np.concatenate((self.positions, positions))
        self.columns = np.concatenate((self.columns, columns))
        self.safe = np.concatenate((self.safe, np.zeros(len(rows), dtype=np.int32)))

    def due(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32]
    ) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Find the entries that need saving when rows[i] is about to hold ends[i] tokens.

        Returns their indices [n] and the tokens their columns will hold, int32 [n].
        """
        self._ends[rows] = ends
        ahead = self._ends[self.rows] - self.positions * self._block_tokens
        self._ends[rows] = 0
        held = np.minimum(ahead, self._block_tokens)
        due = (held > self.safe).nonzero()[0]
        return due, held[due]

    def narrow(self, entries: NDArray[np.intp], safe: NDArray[np.int32]) -> None:
        """Set the safe tokens of `entries` (distinct, [n]); drop those that are wholly safe."""
        self.safe[entries] = safe
        if (safe == self._block_tokens).any():
            self.keep(self.safe < self._block_tokens)

    def forget(self, columns: NDArray[np.int32]) -> None:
        """Drop the entries of `columns` (int32 [n])."""
        if len(self.columns):
            self.keep(~np.isin(self.columns, columns))

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the entries where `mask` (bool [n]) is False."""
        self.rows, self.positions = self.rows[mask], self.positions[mask]
        self.columns, self.safe = self.columns[mask], self.safe[mask]
