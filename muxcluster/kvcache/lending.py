"""Lending the last columns of batch sequences, and who gets their blocks (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.kvcache.lentcolumns import NO_BLOCK
from muxcluster.kvcache.modelkv import ModelKv
from muxcluster.kvcache.sequences import Lack
from muxcluster.kvcache.sharing import BOTH, LEFT, RIGHT, Sharing

_NO_BLOCKS = np.empty(0, dtype=np.int32)


class Lending:
    """Lends columns, hands lent blocks to left sequences and takes them back when these end."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def lendable(self, kv: ModelKv, slot: int) -> int:
        """Blocks that lending everything possible of `slot` would make takeable."""
        columns, per_column = self._candidates(kv, slot), kv.columns.blocks_per_column
        most_filled = self._sharing.frames.free // per_column
        most_empty = kv.lent.most_empty - kv.lent.num_empty
        return min(len(columns), most_filled, most_empty) * per_column

    def _candidates(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        """Columns of `slot` that may be lent, deepest first, int32 [n]."""
        table, lent = kv.sequences, kv.lent
        is_batch = self._sharing.is_on and table.owners[slot] == RIGHT
        if not is_batch or lent.is_busy(slot):
            return table.columns[slot, :0]
        whole = table.num_columns[slot] - lent.counts[slot]
        columns = table.columns[slot, :whole][::-1]
        shared = np.flatnonzero(kv.columns.refs[columns] > 1)
        return columns[: shared[0]] if len(shared) else columns

    def lend(self, kv: ModelKv, slot: int, num_computed: int, blocks: int) -> int:
        """Lend columns, deepest first, until `blocks` blocks are; how many were.

        num_computed: tokens of the sequence that are in the cache. Columns without any are freed.
        """
        sharing, table, lent = self._sharing, kv.sequences, kv.lent
        columns, per_column = self._candidates(kv, slot), kv.columns.blocks_per_column
        columns = columns[: max(0, -(-blocks // per_column))]
        end = int(table.num_columns[slot] - lent.counts[slot])
        starts = np.arange(end - 1, end - 1 - len(columns), -1) * kv.block_tokens
        filled = np.clip(num_computed - starts, 0, kv.block_tokens)
        num_empty = int(np.count_nonzero(filled == 0))
        count = min(len(columns), num_empty + sharing.frames.free // per_column)
        if num_empty > lent.most_empty - lent.num_empty:
            count = num_empty = lent.most_empty - lent.num_empty
        if count == 0:
            return 0
        columns, filled = columns[:count].copy(), filled[:count]
        kv.prefix.unpublish(columns, RIGHT)
        whole_tokens = (end - count) * kv.block_tokens
        table.num_committed[slot] = min(table.num_committed[slot], whole_tokens)
        lent.slots[columns], lent.filled[columns] = slot, filled
        lent.counts[slot] += count
        sharing.num_lent_columns += count
        self._free_empty(kv, slot, columns[:num_empty])
        self._offer(kv, columns[num_empty:])
        return count * per_column

    def _free_empty(self, kv: ModelKv, slot: int, columns: NDArray[np.int32]) -> None:
        blocks = kv.columns.blocks[columns].ravel()
        kv.columns.blocks[columns] = NO_BLOCK
        kv.lent.costs[slot] += len(blocks)
        kv.lent.num_empty += len(columns)
        self._sharing.pool.drop(blocks, RIGHT)
        self._sharing.ledger.give(kv.model.name, len(blocks), is_batch=True)

    def _offer(self, kv: ModelKv, columns: NDArray[np.int32]) -> None:
        sharing, per_column = self._sharing, kv.columns.blocks_per_column
        rights = sharing.rights
        blocks = kv.columns.blocks[columns].ravel()
        kv.lent.frames[columns] = sharing.frames.take(len(blocks)).reshape(-1, per_column)
        rights.models[blocks] = sharing.index[kv.model.name]
        cells = columns[:, None] * np.int64(per_column) + np.arange(per_column)
        rights.cells[blocks] = cells.ravel()
        rights.saved[blocks] = (kv.block_tokens - kv.lent.filled[columns]).repeat(per_column)
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
        grown = kv.extend(lack, self._allocate)
        is_shared = (sharing.pool.owners[grown.blocks] == BOTH).any(axis=1)
        slots, positions = grown.slots[is_shared], grown.columns[is_shared]
        kv.shared.add(slots, positions, kv.sequences.columns[slots, positions])
        return grown

    def _allocate(self, owners: NDArray[np.uint8]) -> NDArray[np.int32]:
        """All free blocks, and lent ones for the rest, which are left owners."""
        sharing = self._sharing
        num_free = sharing.pool.free
        order = np.argsort(owners == LEFT, kind="stable")
        taken = sharing.lent.take(len(owners) - num_free)
        sharing.pool.share(taken, LEFT)
        sharing.raise_costs(taken, 1)
        ids = np.empty(len(owners), dtype=np.int32)
        ids[order[:num_free]] = sharing.pool.allocate(owners[order[:num_free]])
        ids[order[num_free:]] = taken
        return ids

    def close(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        """A sequence is about to end: it gives back what it lent.

        Returns the blocks it shares with right owners if it is a left one, int32 [n].
        """
        if not self._sharing.is_on:
            return _NO_BLOCKS
        self._sharing.jobs.forget(kv.model.name, slot)
        if kv.sequences.owners[slot] == RIGHT:
            self._end_lent(kv, slot)
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

    def take_back(self, blocks: NDArray[np.int32]) -> None:
        """The left owners of `blocks` (int32 [n], counted as free) have gone: lent again.

        Those that a running job restores from belong to their batch sequence until it has ended.
        """
        sharing = self._sharing
        sharing.ledger.free_lent(-len(blocks))
        is_source = sharing.rights.is_source[blocks]
        sharing.raise_costs(blocks[~is_source], -1)
        for kv, ours in sharing.by_model(blocks):
            theirs = blocks[ours]
            sharing.ledger.unlend(kv.model.name, len(theirs))
            sharing.lend(kv, theirs[~is_source[ours]])

    def _end_lent(self, kv: ModelKv, slot: int) -> None:
        """The lent columns of a slot are gone, and their frames free."""
        sharing, lent = self._sharing, kv.lent
        assert not lent.is_restoring[slot], "a sequence is closed that a running job restores"
        count = int(lent.counts[slot])
        lent.forget(slot)
        if count == 0:
            return
        columns = kv.sequences.truncate(slot, int(kv.sequences.num_columns[slot]) - count)
        sharing.frames.give(lent.frames_of(columns))
        lent.num_empty -= lent.count_empty(columns)
        kv.columns.detach(columns)
        blocks, _ = kv.columns.remove(columns)
        blocks = blocks[blocks != NO_BLOCK]
        untaken = blocks[sharing.pool.owners[blocks] == RIGHT]
        sharing.pool.drop(blocks, RIGHT)
        sharing.lent.remove(untaken)
        sharing.ledger.free_lent(len(untaken))
