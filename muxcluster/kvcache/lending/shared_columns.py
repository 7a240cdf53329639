"""The columns of one model's interactive sequences that lie over lent blocks."""

import numpy as np
from numpy.typing import NDArray


class SharedColumns:
    """A short list, one entry a column, [n] each.

    slots, positions, columns: int32, whose column it is, where in its table, and its id.
    safe: int32, tokens that the column may hold before anything more must be saved (a lower
        bound). An entry stays until that many are passed or its sequence ends, also when the right
        owners are gone.
    """

    def __init__(self, max_seqs: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._ends = np.zeros(max_seqs, dtype=np.int32)
        self.slots = np.empty(0, dtype=np.int32)
        self.positions = np.empty(0, dtype=np.int32)
        self.columns = np.empty(0, dtype=np.int32)
        self.safe = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.slots)

    def add(
        self, slots: NDArray[np.int32], positions: NDArray[np.int32], columns: NDArray[np.int32]
    ) -> None:
        """New entries, of which nothing is known to be safe."""
        self.slots = np.concatenate((self.slots, slots))
        self.positions = np.concatenate((self.positions, positions))
        self.columns = np.concatenate((self.columns, columns))
        self.safe = np.concatenate((self.safe, np.zeros(len(slots), dtype=np.int32)))

    def due(
        self, slots: NDArray[np.int32], ends: NDArray[np.int32]
    ) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Entries that must be looked at when slots[i] is about to hold ends[i] tokens.

        Returns their indices [n] and the tokens their columns will hold, int32 [n].
        """
        self._ends[slots] = ends
        ahead = self._ends[self.slots] - self.positions * self._block_tokens
        self._ends[slots] = 0
        held = np.minimum(ahead, self._block_tokens)
        due = (held > self.safe).nonzero()[0]
        return due, held[due]

    def narrow(self, entries: NDArray[np.intp], safe: NDArray[np.int32]) -> None:
        """`safe` tokens of `entries` (distinct, [n]) are safe now; drop those wholly safe."""
        self.safe[entries] = safe
        if (safe == self._block_tokens).any():
            self.keep(self.safe < self._block_tokens)

    def forget(self, columns: NDArray[np.int32]) -> None:
        """Drop the entries of `columns` (int32 [n])."""
        if len(self.columns):
            self.keep(~np.isin(self.columns, columns))

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the entries where `mask` (bool [n]) is False."""
        self.slots, self.positions = self.slots[mask], self.positions[mask]
        self.columns, self.safe = self.columns[mask], self.safe[mask]
