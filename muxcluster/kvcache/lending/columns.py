"""The lent columns of one model's sequences."""

import numpy as np
from numpy.typing import NDArray

NO_BLOCK = -1
"""In a lent column: the block is gone, and its tokens, if it had any, are in its frame."""


class LentColumns:
    """Per slot and per column of one model.

    counts: int32 [max_seqs], lent columns at the end of each slot's table; 0 for a whole one.
        A kept column among them is counted.
    costs: int32 [max_seqs], blocks of them that are gone or taken by a left sequence.
    num_saving: int16 [max_seqs], running jobs that save tokens of the slot.
    is_restoring, is_spoiled: bool [max_seqs], a running job restores it; a save of it failed.
    slots, filled: int32 [num_columns], the slot of a lent column and the tokens in it.
    frames: int32 [num_columns, blocks_per_column], the host frame of each block of a lent column
        with tokens.
    is_kept: bool [num_columns], a column amid lent ones that is as it was: a left sequence keeps
        the one that lies over tokens of others.
    num_empty, most_empty: lent and restoring columns without tokens, and how many there may be:
        nothing else bounds them.
    """

    def __init__(self, max_seqs: int, shape: tuple[int, int], most_empty: int) -> None:
        """shape: columns of the model, and blocks in each."""
        num_columns, _ = shape
        self.num_empty, self.most_empty = 0, most_empty
        self.counts = np.zeros(max_seqs, dtype=np.int32)
        self.costs = np.zeros(max_seqs, dtype=np.int32)
        self.num_saving = np.zeros(max_seqs, dtype=np.int16)
        self.is_restoring = np.zeros(max_seqs, dtype=np.bool_)
        self.is_spoiled = np.zeros(max_seqs, dtype=np.bool_)
        self.slots = np.zeros(num_columns, dtype=np.int32)
        self.filled = np.zeros(num_columns, dtype=np.int32)
        self.is_kept = np.zeros(num_columns, dtype=np.bool_)
        self.frames = np.zeros(shape, dtype=np.int32)

    def is_busy(self, slot: int) -> bool:
        """True while the slot's copies are on their way, or lost."""
        return bool(self.num_saving[slot] or self.is_restoring[slot] or self.is_spoiled[slot])

    def places(
        self, columns: NDArray[np.int32], block_tokens: int, *, is_left: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """First filled place of lent `columns` (int32 [n]) of one side and the end, int32 [n]."""
        filled = self.filled[columns]
        if is_left:
            return np.zeros_like(filled), filled
        return block_tokens - filled, np.full_like(filled, block_tokens)

    def frames_of(self, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        """The frames that lent `columns` hold, int32 [n]."""
        return self.frames[columns[self.filled[columns] > 0]].ravel()

    def count_empty(self, columns: NDArray[np.int32]) -> int:
        """Those of lent `columns` (int32 [n]) that have no tokens."""
        return int(np.count_nonzero(self.filled[columns] == 0))

    def forget(self, slot: int) -> None:
        """The slot is closed."""
        self.counts[slot] = self.costs[slot] = self.num_saving[slot] = 0
        self.is_spoiled[slot] = False
