"""What one model's sequences lend, what its jobs save, and how it is restored (BROS §5).

`LentState` carries out what is chosen here.
"""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.kvcache.eviction import CachedColumns
from muxcluster.kvcache.lending.blocks import NO_BLOCK, NO_RUNS, runs
from muxcluster.kvcache.lending.state import LentState, Restore
from muxcluster.kvcache.model import ModelKv
from muxcluster.kvcache.pool import LEFT, RIGHT, Shortage

_NO_BLOCKS = np.empty(0, dtype=np.int32)


class ModelLending:
    """Lends the last columns of one model's sequences, and makes them whole again."""

    def __init__(
        self, state: LentState, kv: ModelKv, cached: CachedColumns, *, saves_lazily: bool
    ) -> None:
        """saves_lazily: False saves all that a block holds with the first job that writes there."""
        self._state = state
        self._kv = kv
        self._cached = cached
        self._saves_lazily = saves_lazily

    # Lend

    def lendable(self, row: int) -> int:
        """Return the blocks that lending all of `row` (in no running job) would make takeable.

        0 while copies of the row are on their way. All rows draw on the same host blocks: together
        they lend at most `KvCache.free_host_blocks` blocks with tokens.
        """
        kv, columns = self._kv, self._candidates(row)
        per_column = kv.columns.blocks_per_column
        num_columns = len(columns) - int(np.count_nonzero(self._is_over(row, columns)))
        most_filled = self._state.host_blocks.free // per_column
        return min(num_columns, most_filled, kv.lent.spare_empty) * per_column

    def lend(self, row: int, num_computed: int, blocks: int) -> int:
        """Lend columns of `row` (in no running job), deepest first; return the blocks lent.

        Stops at a column with another reader, or where host blocks are short. num_computed: the
        sequence's tokens in the cache. A left one keeps columns that lie over lent blocks.
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

    # Save

    @property
    def lies_over_lent(self) -> bool:
        """True where left sequences of the model may lie over lent blocks: see `saves`."""
        return len(self._kv.over_lent) > 0

    def blocked(self) -> NDArray[np.bool_] | None:
        """Return which left rows no new job may have now, bool [max_seqs], or None for none."""
        return self._state.blocked(self._kv)

    def saves(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """Return what job `job_id` saves before left rows[i] (distinct) holds ends[i] tokens."""
        kv, over_lent, state = self._kv, self._kv.over_lent, self._state
        if not len(over_lent):
            return ()
        due, held = over_lent.due(rows, kv.num_held(ends))
        if len(due) == 0:
            return ()
        blocks = kv.columns.blocks[over_lent.columns[due]]
        is_taken = state.is_taken(blocks)
        entries = is_taken.nonzero()[0]
        safe = np.full(blocks.shape, kv.block_tokens, dtype=np.int32)
        blocks = blocks[is_taken]
        safe_ours = np.empty(len(blocks), dtype=np.int32)
        copies: list[SlotCopies] = []
        for victim, ours in state.by_model(blocks):
            theirs = blocks[ours].astype(np.intp)  # once: numpy would convert at each use
            touched = self._touched(victim, theirs, held[entries[ours]])
            saved = state.save(victim, theirs, touched, job_id)
            if len(saved):
                copies.append(SlotCopies(victim.model.name, saved, NO_RUNS, NO_RUNS))
            safe_ours[ours] = self._safe(victim, theirs)
        safe[is_taken] = safe_ours
        over_lent.narrow(due, np.minimum.reduce(safe, axis=1))
        return tuple(copies)

    def untaken(self, row: int) -> int:
        """Return how many blocks `row` lent that no left sequence took."""
        return len(self._untaken_blocks(row))

    def swap_out(self, row: int, count: int, job_id: int) -> SlotCopies:
        """Free so many untaken blocks of `row` at once; job `job_id` saves what they hold.

        The caller gives that job all blocks that are free now, as no other may write there first.
        """
        untaken = self._untaken_blocks(row)
        blocks = untaken[len(untaken) - count :]
        assert len(blocks) == count, "blocks are swapped out that are not lent"
        saved = self._state.save_and_free(self._kv, blocks, job_id)
        return SlotCopies(self._kv.model.name, saved, NO_RUNS, NO_RUNS)

    def _untaken_blocks(self, row: int) -> NDArray[np.int32]:
        """Return the blocks that a sequence lent and no left one took, int32 [n]."""
        kv = self._kv
        if not kv.lent.counts[row]:
            return _NO_BLOCKS
        _, _, columns = kv.lent_entries(np.array([row], dtype=np.int32))
        blocks = kv.columns.blocks[columns].ravel()
        return self._state.untaken(blocks[blocks != NO_BLOCK])

    def _touched(
        self, victim: ModelKv, blocks: NDArray[np.intp], held: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Return the end of the places of `victim` that `blocks` lose to `held` > 0 tokens, [n]."""
        # A full column takes all: it may be published, and must then have no lender, even if it
        # leaves some bytes at the end of the block. Of what an interactive sequence lent, all is
        # taken at once: its tokens are the first to be overwritten, and so the sequence that took
        # the block can lend it in turn.
        lenders = self._state.lenders
        places = -(-held * self._kv.slot_bytes // victim.slot_bytes)
        ends = lenders.ends[blocks].astype(np.int32)
        is_full = held == self._kv.block_tokens
        takes_all = lenders.is_left[blocks] | is_full | (not self._saves_lazily)
        return np.where(takes_all, ends, np.minimum(places, ends))

    def _safe(self, victim: ModelKv, blocks: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the tokens of left columns over `blocks` that need no more saving, [n]."""
        kv, lenders = self._kv, self._state.lenders
        saved = lenders.saved[blocks].astype(np.int32)
        safe = saved  # where their blocks hold as many tokens
        if not self._saves_lazily or victim.slot_bytes != kv.slot_bytes:
            most = kv.block_tokens - 1 if self._saves_lazily else 0
            safe = np.minimum(saved * victim.slot_bytes // kv.slot_bytes, most)
        return np.where(saved == lenders.ends[blocks], kv.block_tokens, safe)

    # Restore

    def restore_cost(self, row: int) -> int:
        """Return the fresh blocks that a restore of `row` would take now."""
        return int(self._kv.lent.costs[row])

    def restore_shortage(self, row: int, spare: int) -> Shortage | None:
        """Return what is missing to restore `row` and take `spare` blocks more."""
        return self._shortage(np.array([row], dtype=np.int32), spare)[1]

    def can_restore(self, row: int) -> bool:
        """False while jobs save it, restore it or what it lies over, and after a failed save."""
        return not (self._kv.lent.is_busy(row) or self._state.is_blocked(self._kv, row))

    def restore(
        self, rows: NDArray[np.int32], job_id: int
    ) -> tuple[TableDelta, SlotCopies] | Shortage:
        """Make `rows` (distinct, of one side) whole with a job, all or none of them.

        Returns new table entries and copies, or what is missing. Left ones take lent blocks, too:
        call `saves` of them for the job before its next `restore`.
        """
        blocks, shortage = self._shortage(rows)
        if shortage is not None:
            return shortage
        self._cached.make_room(blocks)
        restore = self._plan(rows)
        self._state.restore(restore, job_id)
        tables = TableDelta(restore.column_rows, restore.positions, restore.after.copy())
        return tables, self._copies(restore)

    def _shortage(self, rows: NDArray[np.int32], spare: int = 0) -> tuple[int, Shortage | None]:
        """Return the blocks that lent `rows` (of one side) and `spare` need, and the shortage."""
        kv, ledger = self._kv, self._state.ledger
        fresh = int(kv.lent.costs[rows].sum())
        blocks = fresh + spare
        if kv.sequences.owners[rows[0]] == RIGHT:
            return blocks, ledger.shortage(kv.model.name, blocks, blocks)
        _, _, columns = kv.lent_entries(rows)
        num_returned = len(columns) * kv.columns.blocks_per_column - fresh
        return blocks, ledger.shortage(kv.model.name, blocks, num_returned=num_returned)

    def _plan(self, rows: NDArray[np.int32]) -> Restore:
        kv, lent, table = self._kv, self._kv.lent, self._kv.sequences
        assert not any(map(lent.is_busy, rows.tolist())), "copies of a sequence are on their way"
        owner = int(table.owners[rows[0]])
        assert (table.owners[rows] == owner).all(), "sequences of both sides are restored"
        column_rows, positions, columns = kv.lent_entries(rows)
        before = kv.columns.blocks[columns]
        is_gone = before == NO_BLOCK
        is_taken = ~is_gone & self._state.is_taken(before)
        return Restore(
            kv=kv,
            is_left=owner == LEFT,
            rows=rows.copy(),
            counts=lent.counts[rows],
            ends=table.num_columns[rows],
            column_rows=column_rows,
            positions=positions,
            columns=columns,
            before=before,
            after=before.copy(),
            is_fresh=is_gone | is_taken,
            sources=before[is_taken],
        )

    def _copies(self, restore: Restore) -> SlotCopies:
        """Saved places come from host memory, the others from blocks that are left behind."""
        kv = restore.kv
        is_gone = restore.before == NO_BLOCK
        shape, width = restore.before.shape, kv.block_tokens
        first, end = kv.lent.places(restore.columns, width, is_left=restore.is_left)
        first, end = (np.broadcast_to(each[:, None], shape) for each in (first, end))
        watermarks = self._state.lenders.saved[restore.before]
        saved = np.where(is_gone, end, watermarks).astype(np.int32)
        host_blocks = kv.lent.host_blocks[restore.columns]
        has_moved = restore.is_fresh & ~is_gone
        after = restore.after[has_moved]
        return SlotCopies(
            kv.model.name,
            saves=NO_RUNS,
            moves=runs(restore.sources, after, width, saved[has_moved], end[has_moved]),
            restores=runs(
                host_blocks.ravel(), restore.after.ravel(), width, first.ravel(), saved.ravel()
            ),
        )
