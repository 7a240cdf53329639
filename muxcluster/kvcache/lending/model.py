"""What one model's sequences lend, what its jobs save, and how it is restored (BROS §5).

`LentState` carries out what is chosen here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.kvcache.eviction import CachedColumns
from muxcluster.kvcache.lending.blocks import NO_BLOCK, NO_RUNS, Runs, runs
from muxcluster.kvcache.lending.state import LentState, Restore
from muxcluster.kvcache.model import ModelKv, joined_tables
from muxcluster.kvcache.pool import LEFT, RIGHT, Shortage

_NO_BLOCKS = np.empty(0, dtype=np.int32)


class _Offer(NamedTuple):
    """The columns of one kind of layers that a sequence may lend, deepest first, [n]."""

    kv: ModelKv
    columns: NDArray[np.int32]
    filled: NDArray[np.int64]  # tokens in each
    is_kept: NDArray[np.bool_]  # where it lies over tokens of others, and stays

    @property
    def size(self) -> int:
        """Blocks of a column."""
        return self.kv.columns.blocks_per_column


class ModelLending:
    """Lends the last columns of one model's sequences, and makes them whole again."""

    def __init__(
        self,
        state: LentState,
        kinds: Sequence[ModelKv],
        cached: CachedColumns,
        *,
        saves_lazily: bool,
    ) -> None:
        """kinds: of the model's layers. saves_lazily: False saves all that a block holds with the
        first job that writes there."""
        self._state = state
        self._kinds = tuple(kinds)
        self._kv = kinds[0]
        self._cached = cached
        self._saves_lazily = saves_lazily

    # Lend

    def lendable(self, row: int) -> int:
        """Return the blocks that lending all of `row` (in no running job) would make takeable.

        0 while copies of the row are on their way. All rows draw on the same host blocks: together
        they lend at most `KvCache.free_host_blocks` blocks with tokens.
        """
        per_column = self._kv.model.shape.blocks_per_column
        held = [
            (kv, len(columns), int(np.count_nonzero(self._is_over(kv, row, columns))))
            for kv, columns in zip(self._kinds, self._candidates(row), strict=True)
        ]
        num_columns = max(count for _, count, _ in held) - max(num_over for *_, num_over in held)
        most_filled = self._state.host_blocks.free // per_column
        most = min(num_columns, most_filled, self._spare_empty)
        return sum(
            min(most, count - num_over) * kv.columns.blocks_per_column
            for kv, count, num_over in held
        )

    @property
    def _spare_empty(self) -> int:
        """How many more columns without tokens may be lent."""
        return min(kv.lent.spare_empty for kv in self._kinds)

    def lend(self, row: int, num_computed: int, blocks: int) -> int:
        """Lend columns of `row` (in no running job), deepest first; return the blocks lent.

        Stops at a column with another reader, or where host blocks are short. num_computed: the
        sequence's tokens in the cache. A left one keeps columns that lie over lent blocks.
        """
        candidates = self._candidates(row)
        if blocks <= 0 or not any(map(len, candidates)):
            return 0
        offers = [
            self._offer(kv, row, columns, num_computed)
            for kv, columns in zip(self._kinds, candidates, strict=True)
        ]
        count = self._count(blocks, offers)
        if count == 0:
            return 0
        lent = 0
        for kv, columns, filled, is_kept in offers:
            if len(columns):
                chosen = columns[:count].copy()
                lent += self._state.lend(kv, row, chosen, filled[:count], is_kept[:count])
        whole = int(self._kv.sequences.num_columns[row] - self._kv.lent.counts[row])
        for kv in self._kinds:  # what some layers lent is computed no longer
            kv.sequences.uncommit(row, whole)
        return lent

    def _candidates(self, row: int) -> list[NDArray[np.int32]]:
        """Return the columns of `row` that may be lent, of each kind, deepest first, int32 [n]."""
        kinds, state = self._kinds, self._state
        is_busy = any(kv.lent.is_busy(row) or state.is_blocked(kv, row) for kv in kinds)
        if not state.is_on or is_busy:
            return [_NO_BLOCKS] * len(kinds)
        found: list[NDArray[np.int32]] = []
        most = self._kv.sequences.max_columns
        for kv in kinds:
            table = kv.sequences
            whole = table.num_columns[row] - kv.lent.counts[row]
            columns = table.columns[row, table.begins[row] : whole][::-1]
            read_by_others = np.flatnonzero(kv.columns.refs[columns] > 1)
            if len(read_by_others):
                most = min(most, int(read_by_others[0]))
            found.append(columns)
        return [columns[:most] for columns in found]

    def _offer(
        self, kv: ModelKv, row: int, columns: NDArray[np.int32], num_computed: int
    ) -> _Offer:
        end = int(kv.sequences.num_columns[row] - kv.lent.counts[row])
        starts = np.arange(end - 1, end - 1 - len(columns), -1) * kv.block_tokens
        filled = np.clip(kv.num_held(num_computed) - starts, 0, kv.block_tokens)
        return _Offer(kv, columns, filled, self._is_over(kv, row, columns) & (filled > 0))

    def _is_over(self, kv: ModelKv, row: int, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which `columns` of `row` lie over tokens of others, bool [n]."""
        if kv.sequences.owners[row] == RIGHT or len(kv.over_lent) == 0:
            return np.zeros(len(columns), dtype=np.bool_)
        is_taken = self._state.is_taken(kv.columns.blocks[columns])
        return np.asarray(is_taken.any(axis=1))

    def _count(self, blocks: int, offers: Sequence[_Offer]) -> int:
        """Return how many columns to lend for at least `blocks` blocks, or as many as can."""
        longest = max(len(offer.columns) for offer in offers)
        gains, with_tokens = (np.zeros(longest, dtype=np.int64) for _ in range(2))
        stays = np.ones(longest, dtype=np.bool_)
        num_empty = 0  # the empty ones come first
        for offer in offers:
            mine = slice(len(offer.columns))
            gains[mine] += ~offer.is_kept * offer.size
            with_tokens[mine] += ((offer.filled > 0) & ~offer.is_kept) * offer.size
            stays[mine] &= offer.is_kept
            num_empty = max(num_empty, int(np.count_nonzero(offer.filled == 0)))
        count = int(np.searchsorted(gains.cumsum(), blocks)) + 1
        has_room = with_tokens.cumsum() <= self._state.host_blocks.free
        count = min(count, int(np.count_nonzero(has_room)))
        if min(count, num_empty) > self._spare_empty:
            count = self._spare_empty
        while count and stays[count - 1]:
            count -= 1
        return count

    # Save

    @property
    def lies_over_lent(self) -> bool:
        """True where left sequences of the model may lie over lent blocks: see `saves`."""
        return any(len(kv.over_lent) for kv in self._kinds)

    def blocked(self) -> NDArray[np.bool_] | None:
        """Return which left rows no new job may have now, bool [max_seqs], or None for none."""
        found = [rows for rows in map(self._state.blocked, self._kinds) if rows is not None]
        return np.logical_or.reduce(found) if found else None

    def saves(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """Return what job `job_id` saves before left rows[i] (distinct) holds ends[i] tokens."""
        copies: list[SlotCopies] = []
        for kv in self._kinds:
            if len(kv.over_lent):
                copies += self._saves(kv, rows, ends, job_id)
        return tuple(copies)

    def _saves(
        self, kv: ModelKv, rows: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> list[SlotCopies]:
        over_lent, state = kv.over_lent, self._state
        due, held = over_lent.due(rows, kv.num_held(ends))
        if len(due) == 0:
            return []
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
        return copies

    def untaken(self, row: int) -> int:
        """Return how many blocks `row` lent that no left sequence took."""
        return sum(len(self._untaken_blocks(kv, row)) for kv in self._kinds)

    def swap_out(self, row: int, count: int, job_id: int) -> SlotCopies:
        """Free so many untaken blocks of `row` at once; job `job_id` saves what they hold.

        The caller gives that job all blocks that are free now, as no other may write there first.
        """
        saved: list[Runs] = [NO_RUNS]
        for kv in self._kinds:
            untaken = self._untaken_blocks(kv, row)
            blocks = untaken[max(0, len(untaken) - count) :]
            if len(blocks):
                saved.append(self._state.save_and_free(kv, blocks, job_id))
            count -= len(blocks)
        assert count == 0, "blocks are swapped out that are not lent"
        return SlotCopies(self._kv.model.name, np.concatenate(saved), NO_RUNS, NO_RUNS)

    def _untaken_blocks(self, kv: ModelKv, row: int) -> NDArray[np.int32]:
        """Return the blocks that a sequence lent and no left one took, int32 [n]."""
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
        return sum(int(kv.lent.costs[row]) for kv in self._kinds)

    def restore_shortage(self, row: int, spare: int) -> Shortage | None:
        """Return what is missing to restore `row` and take `spare` blocks more."""
        return self._shortage(np.array([row], dtype=np.int32), spare)[1]

    def can_restore(self, row: int) -> bool:
        """False while jobs save it, restore it or what it lies over, and after a failed save."""
        return not any(
            kv.lent.is_busy(row) or self._state.is_blocked(kv, row) for kv in self._kinds
        )

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
        restores = [self._plan(kv, rows) for kv in self._kinds]
        self._state.restore(restores, job_id)
        return self._tables(restores), self._copies(restores)

    def _shortage(self, rows: NDArray[np.int32], spare: int = 0) -> tuple[int, Shortage | None]:
        """Return the blocks that lent `rows` (of one side) and `spare` need, and the shortage."""
        name, ledger = self._kv.model.name, self._state.ledger
        fresh = sum(int(kv.lent.costs[rows].sum()) for kv in self._kinds)
        blocks = fresh + spare
        if self._kv.sequences.owners[rows[0]] == RIGHT:
            return blocks, ledger.shortage(name, blocks, blocks)
        num_lent = sum(
            len(kv.lent_entries(rows)[2]) * kv.columns.blocks_per_column for kv in self._kinds
        )
        return blocks, ledger.shortage(name, blocks, num_returned=num_lent - fresh)

    def _plan(self, kv: ModelKv, rows: NDArray[np.int32]) -> Restore:
        lent, table = kv.lent, kv.sequences
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

    def _tables(self, restores: Sequence[Restore]) -> TableDelta:
        """Return the table entries of the columns that are whole again."""
        first = restores[0]
        if len(restores) == 1:
            return TableDelta(first.column_rows, first.positions, first.after.copy())
        # Not all kinds of layers need have lent the same columns.
        width = np.int64(first.kv.sequences.max_columns)
        places = np.unique(
            np.concatenate([each.column_rows * width + each.positions for each in restores])
        )
        rows, positions = (places // width).astype(np.int32), (places % width).astype(np.int32)
        return joined_tables(self._kinds, rows, positions)

    def _copies(self, restores: Sequence[Restore]) -> SlotCopies:
        """Saved places come from host memory, the others from blocks that are left behind."""
        found = [self._copies_of(restore) for restore in restores]
        return SlotCopies(
            self._kv.model.name,
            saves=NO_RUNS,
            moves=np.concatenate([moves for moves, _ in found]),
            restores=np.concatenate([from_host for _, from_host in found]),
        )

    def _copies_of(self, restore: Restore) -> tuple[Runs, Runs]:
        """Return the moves and the copies from host memory of one kind of layers."""
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
        moves = runs(restore.sources, after, width, saved[has_moved], end[has_moved])
        from_host = runs(
            host_blocks.ravel(), restore.after.ravel(), width, first.ravel(), saved.ravel()
        )
        return moves, from_host
