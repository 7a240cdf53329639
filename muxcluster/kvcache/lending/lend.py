"""Chooses the columns that a sequence lends, then has `LentState` lend them (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.lending.state import RIGHT, LentState
from muxcluster.kvcache.model_kv import ModelKv


class ColumnLending:
    """Lends the last columns of one model's sequences, deepest first."""

    def __init__(self, state: LentState, kv: ModelKv) -> None:
        self._state = state
        self._kv = kv

    def lendable(self, row: int) -> int:
        """Return how many blocks, at least, become takeable if `row` lends all it may."""
        kv, columns = self._kv, self._candidates(row)
        per_column = kv.columns.blocks_per_column
        num_columns = len(columns) - int(np.count_nonzero(self._is_over(row, columns)))
        most_filled = self._state.host_blocks.free // per_column
        return min(num_columns, most_filled, kv.lent.spare_empty) * per_column

    def lend(self, row: int, num_computed: int, blocks: int) -> int:
        """Lend tail columns of `row`, deepest first, until `blocks` are lent; return blocks lent.

        A column of an interactive sequence whose blocks still hold tokens of their lender is kept.
        """
        kv, columns = self._kv, self._candidates(row)
        if blocks <= 0 or len(columns) == 0:
            return 0
        end = int(kv.sequences.num_columns[row] - kv.lent.counts[row])
        starts = np.arange(end - 1, end - 1 - len(columns), -1) * kv.block_tokens
        filled = np.clip(kv.num_held(num_computed) - starts, 0, kv.block_tokens)
        is_kept = self._is_over(row, columns) & (filled > 0)
        count = self._count(blocks, filled, is_kept)
        if count == 0:
            return 0
        return self._state.lend(kv, row, columns[:count].copy(), filled[:count], is_kept[:count])

    def _candidates(self, row: int) -> NDArray[np.int32]:
        """Return the columns of `row` that may be lent, deepest first, int32 [n]."""
        kv, table, state = self._kv, self._kv.sequences, self._state
        if not state.is_on or state.is_blocked(kv, row) or kv.lent.is_busy(row):
            return table.columns[row, :0]
        whole = table.num_columns[row] - kv.lent.counts[row]
        columns = table.columns[row, :whole][::-1]
        read_by_others = np.flatnonzero(kv.columns.refs[columns] > 1)
        return columns[: read_by_others[0]] if len(read_by_others) else columns

    def _is_over(self, row: int, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which `columns` of `row` lie over tokens of others, bool [n]."""
        kv = self._kv
        if kv.sequences.owners[row] == RIGHT or len(kv.over_lent) == 0:
            return np.zeros(len(columns), dtype=np.bool_)
        is_taken = self._state.is_taken(kv.columns.blocks[columns])
        return np.asarray(is_taken.any(axis=1))

    def _count(self, blocks: int, filled: NDArray[np.int64], is_kept: NDArray[np.bool_]) -> int:
        """Return how many columns to lend for at least `blocks` blocks, or as many as can."""
        per_column, spare_empty = self._kv.columns.blocks_per_column, self._kv.lent.spare_empty
        count = int(np.searchsorted((~is_kept).cumsum(), -(-blocks // per_column))) + 1
        host_blocks = ((filled > 0) & ~is_kept).cumsum() * per_column
        count = min(count, int(np.count_nonzero(host_blocks <= self._state.host_blocks.free)))
        if np.count_nonzero(filled[:count] == 0) > spare_empty:  # the empty ones come first
            count = spare_empty
        while count and is_kept[count - 1]:
            count -= 1
        return count
