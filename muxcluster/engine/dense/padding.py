"""Which columns of a padded batch hold tokens: the bookkeeping of BATON, without a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """Mask of a padded batch whose rows end in the last column.

    Shorter rows have padding on the left and, where queries were shaped in beside them, holes
    inside.
    """

    mask: Mask  # bool [rows, length], True where the column holds a token of the row

    @classmethod
    def none(cls) -> "Padding":
        return cls(np.zeros((0, 0), dtype=np.bool_))

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Padding":
        """Return rows of the given numbers of tokens (≥ 1), aligned at their ends."""
        return cls.none().appended(np.zeros(0, dtype=np.int64), lengths)

    @property
    def num_rows(self) -> int:
        return len(self.mask)

    @property
    def length(self) -> int:
        """Number of columns, those of padding included."""
        return int(self.mask.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [rows]."""
        lengths: NDArray[np.int64] = self.mask.sum(axis=1, dtype=np.int64)
        return lengths

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64 [rows, length], the position of each token in its row; 0 at padding."""
        # Counted over the mask, not over columns: shaping leaves holes inside rows.
        return np.maximum(np.cumsum(self.mask, axis=1, dtype=np.int64) - 1, 0)

    def appended(self, counts: NDArray[np.int64], new: Sequence[int] = ()) -> "Padding":
        """Vector shaping (§4.1): rows take `counts` tokens (≥ 1 each) in one forward.

        New rows of `new` tokens are added below, with padding where the batch was before them.
        """
        ends = np.concatenate((counts, np.asarray(new, dtype=np.int64)))
        width = int(ends.max())
        before = np.zeros((len(ends), self.length), dtype=np.bool_)
        before[: self.num_rows] = self.mask
        after = np.arange(width) >= width - ends[:, None]
        return Padding(np.concatenate((before, after), axis=1))

    def embedded(self, lengths: Sequence[int]) -> "Padding":
        """Vector embedding (§4.2): add finished rows of `lengths` tokens below.

        All rows are aligned at their ends; rows longer than the batch pad its rows on the left.
        """
        length = max((self.length, *lengths))
        rows = np.zeros((self.num_rows, length), dtype=np.bool_)
        rows[:, length - self.length :] = self.mask
        new = np.arange(length) >= length - np.asarray(lengths, dtype=np.int64).reshape(-1, 1)
        return Padding(np.concatenate((rows, new)))

    def selected(self, rows: Sequence[int]) -> tuple["Padding", NDArray[np.intp]]:
        """Return only `rows`, and the columns (int [kept]) in which one of them has a token.

        Removes the leading padding that they have in common, [0 : min index], and holes that only
        removed rows had filled.
        """
        mask = self.mask[np.asarray(rows, dtype=np.intp)]
        columns = np.flatnonzero(mask.any(axis=0))
        return Padding(mask[:, columns]), columns

    def check(self) -> None:
        """Raise AssertionError unless rows end in the last column and every column is used."""
        assert self.mask.ndim == 2, "a mask is [rows, length]"
        if self.num_rows:
            assert self.mask[:, -1].all(), "a row does not end in the last column"
            assert self.mask.any(axis=0).all(), "a column is padding of every row"
