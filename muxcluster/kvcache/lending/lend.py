"""Lending the last columns of sequences, and who gets their blocks (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.state import BOTH, LEFT, RIGHT, Sharing
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.sequences import Lack

_NO_BLOCKS = np.empty(0, dtype=np.int32)


class Lending:
    """Lends columns, and hands lent blocks to left sequences that grow."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def lendable(self, kv: ModelKv, slot: int) -> int:
        """Blocks that lending everything possible of `slot` would make takeable, or fewer."""
        columns, per_column = self._candidates(kv, slot), kv.columns.blocks_per_column
        num_columns = len(columns) - int(np.count_nonzero(self._is_over(kv, slot, columns)))
        most_filled = self._sharing.frames.free // per_column
        most_empty = kv.lent.most_empty - kv.lent.num_empty
        return min(num_columns, most_filled, most_empty) * per_column

    def _candidates(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        """Columns of `slot` that may be lent, deepest first, int32 [n]."""
        table, lent = kv.sequences, kv.lent
        is_blocked = self._sharing.jobs.blocks(kv.model.name, slot)
        if not self._sharing.is_on or is_blocked or lent.is_busy(slot):
            return table.columns[slot, :0]
        whole = table.num_columns[slot] - lent.counts[slot]
        columns = table.columns[slot, :whole][::-1]
        shared = np.flatnonzero(kv.columns.refs[columns] > 1)
        return columns[: shared[0]] if len(shared) else columns

    def _is_over(self, kv: ModelKv, slot: int, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the `columns` of `slot` lie over tokens of others, bool [n]."""
        if kv.sequences.owners[slot] == RIGHT or len(kv.shared) == 0:
            return np.zeros(len(columns), dtype=np.bool_)
        owners = self._sharing.pool.owners[kv.columns.blocks[columns]]
        is_over: NDArray[np.bool_] = (owners == BOTH).any(axis=1)
        return is_over

    def lend(self, kv: ModelKv, slot: int, num_computed: int, blocks: int) -> int:
        """Lend tail columns of `slot`, deepest first, until `blocks` are lent; blocks lent.

        A left column over tokens of others stays as it is where it has tokens of its own.
        """
        lent, table, owner = kv.lent, kv.sequences, int(kv.sequences.owners[slot])
        columns = self._candidates(kv, slot)
        if blocks <= 0 or len(columns) == 0:
            return 0
        end = int(table.num_columns[slot] - lent.counts[slot])
        starts = np.arange(end - 1, end - 1 - len(columns), -1) * kv.block_tokens
        filled = np.clip(kv.num_held(num_computed) - starts, 0, kv.block_tokens)
        is_kept = self._is_over(kv, slot, columns) & (filled > 0)
        count = self._count(kv, blocks, filled, is_kept)
        if count == 0:
            return 0
        columns, filled, is_kept = columns[:count].copy(), filled[:count], is_kept[:count]
        lent.slots[columns], lent.filled[columns] = slot, filled
        lent.is_kept[columns] = is_kept
        lent.counts[slot] += count
        whole_tokens = (end - count) * kv.block_tokens
        table.num_committed[slot] = min(table.num_committed[slot], whole_tokens)
        lost = columns[~is_kept]
        kv.prefix.unpublish(lost, owner)
        kv.shared.forget(lost)
        self._free_empty(kv, slot, columns[filled == 0])
        self._offer(kv, columns[(filled > 0) & ~is_kept], is_left=owner == LEFT)
        return len(lost) * kv.columns.blocks_per_column

    def _count(
        self, kv: ModelKv, blocks: int, filled: NDArray[np.int64], is_kept: NDArray[np.bool_]
    ) -> int:
        """How many columns to lend so that `blocks` are, or as many as can be."""
        lent, per_column = kv.lent, kv.columns.blocks_per_column
        count = int(np.searchsorted((~is_kept).cumsum(), -(-blocks // per_column))) + 1
        num_frames = ((filled > 0) & ~is_kept).cumsum() * per_column
        count = min(count, int(np.count_nonzero(num_frames <= self._sharing.frames.free)))
        most_empty = lent.most_empty - lent.num_empty
        if np.count_nonzero(filled[:count] == 0) > most_empty:  # the empty ones come first
            count = most_empty
        while count and is_kept[count - 1]:
            count -= 1
        return count

    def _free_empty(self, kv: ModelKv, slot: int, columns: NDArray[np.int32]) -> None:
        if len(columns) == 0:
            return
        blocks = kv.columns.blocks[columns].ravel()
        kv.columns.blocks[columns] = NO_BLOCK
        kv.lent.costs[slot] += len(blocks)
        kv.lent.num_empty += len(columns)
        if kv.sequences.owners[slot] == LEFT:
            self._sharing.leave(kv, blocks)
            return
        self._sharing.pool.drop(blocks, RIGHT)
        self._sharing.ledger.give(kv.model.name, len(blocks), is_batch=True)

    def _offer(self, kv: ModelKv, columns: NDArray[np.int32], *, is_left: bool) -> None:
        sharing, per_column = self._sharing, kv.columns.blocks_per_column
        rights = sharing.rights
        blocks = kv.columns.blocks[columns].ravel()
        kv.lent.frames[columns] = sharing.frames.take(len(blocks)).reshape(-1, per_column)
        rights.models[blocks] = sharing.index[kv.model.name]
        cells = columns[:, None] * np.int64(per_column) + np.arange(per_column)
        rights.cells[blocks] = cells.ravel()
        first, end = kv.lent.places(columns, kv.block_tokens, is_left=is_left)
        rights.saved[blocks] = first.repeat(per_column)
        rights.ends[blocks] = end.repeat(per_column)
        rights.is_left[blocks] = is_left
        if is_left:
            sharing.pool.share(blocks, RIGHT)
            sharing.pool.drop(blocks, LEFT)
        sharing.lend(kv, blocks)

    def batch_part(self, kv: ModelKv, lack: Lack) -> int:
        """Blocks of what is lacking that are for right sequences; 0 where all count alike."""
        if not self._sharing.is_on:
            return 0
        assert not np.count_nonzero(kv.lent.counts[lack.slots]), "a lent sequence grows"
        is_right = kv.sequences.owners[lack.slots] == RIGHT
        num_right = np.count_nonzero(is_right)
        if num_right in (0, len(is_right)):  # jobs mostly grow one class at a time
            columns = lack.total if num_right else 0
        else:
            columns = int((lack.wanted - lack.held)[is_right].sum())
        return columns * kv.columns.blocks_per_column

    def extend(self, kv: ModelKv, lack: Lack, batch: int) -> TableDelta:
        """Give the sequences their columns: free blocks, then lent ones; `batch` of them right."""
        sharing, ledger = self._sharing, self._sharing.ledger
        blocks = lack.total * kv.columns.blocks_per_column
        num_lent = max(0, blocks - ledger.free)
        ledger.free_lent(num_lent)
        ledger.take(kv.model.name, blocks - batch)
        ledger.take(kv.model.name, batch, is_batch=True)
        if num_lent == 0:
            return kv.extend(lack, sharing.pool.allocate)
        grown = kv.extend(lack, sharing.allocate)
        is_shared = (sharing.pool.owners[grown.blocks] == BOTH).any(axis=1)
        slots, positions = grown.slots[is_shared], grown.columns[is_shared]
        kv.shared.add(slots, positions, kv.sequences.columns[slots, positions])
        return grown

    def close(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        """A sequence is about to end: it gives back what it lent.

        Returns the blocks it shares with right owners if it is a left one, int32 [n].
        """
        if not self._sharing.is_on:
            return _NO_BLOCKS
        self._sharing.jobs.forget(kv.model.name, slot)
        self._end_lent(kv, slot)
        if kv.sequences.owners[slot] == RIGHT:
            return _NO_BLOCKS
        return self._leave(kv, slot)

    def _leave(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        ours = kv.shared.slots == slot
        if not np.count_nonzero(ours):
            return _NO_BLOCKS
        blocks = kv.columns.blocks[kv.shared.columns[ours]].ravel()
        kv.shared.keep(~ours)
        shared: NDArray[np.int32] = blocks[self._sharing.pool.owners[blocks] == BOTH]
        return shared

    def _end_lent(self, kv: ModelKv, slot: int) -> None:
        """The lent columns of a slot but kept ones are gone, and their frames free."""
        sharing, lent = self._sharing, kv.lent
        assert not lent.is_restoring[slot], "a sequence is closed that a running job restores"
        count = int(lent.counts[slot])
        lent.forget(slot)
        if count == 0:
            return
        columns = kv.sequences.truncate(slot, int(kv.sequences.num_columns[slot]) - count)
        is_kept = lent.is_kept[columns]
        kv.sequences.put_back(slot, columns[is_kept])
        columns = columns[~is_kept]
        sharing.frames.give(lent.frames_of(columns))
        lent.num_empty -= lent.count_empty(columns)
        kv.columns.detach(columns)
        blocks, _ = kv.columns.remove(columns)
        blocks = blocks[blocks != NO_BLOCK]
        untaken = blocks[sharing.pool.owners[blocks] == RIGHT]
        sharing.pool.drop(blocks, RIGHT)
        sharing.lent.remove(untaken)
        sharing.ledger.free_lent(len(untaken))
