"""What making lent sequences whole again takes, and the copies that do it (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.kvcache.lending.blocks import NO_RUNS, runs
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.state import LEFT, RIGHT, LentState, Restore
from muxcluster.kvcache.model import Shortage
from muxcluster.kvcache.model_kv import ModelKv


class ColumnRestoring:
    """Plans restores of one model's lent sequences; each is final when its job has succeeded."""

    def __init__(self, state: LentState, kv: ModelKv) -> None:
        self._state = state
        self._kv = kv

    def can_restore(self, row: int) -> bool:
        """False while copies of the sequence are on their way or lost, or it is blocked."""
        return not (self._kv.lent.is_busy(row) or self._state.is_blocked(self._kv, row))

    def shortage(self, rows: NDArray[np.int32], spare: int = 0) -> tuple[int, Shortage | None]:
        """Return the blocks that lent `rows` (of one side) and `spare` need, and the shortage."""
        kv, ledger = self._kv, self._state.ledger
        fresh = int(kv.lent.costs[rows].sum())
        blocks = fresh + spare
        if kv.sequences.owners[rows[0]] == RIGHT:
            return blocks, ledger.shortage(kv.model.name, blocks, blocks)
        _, _, columns = kv.lent_entries(rows)
        num_returned = len(columns) * kv.columns.blocks_per_column - fresh
        return blocks, ledger.shortage(kv.model.name, blocks, num_returned=num_returned)

    def restore(self, rows: NDArray[np.int32], job_id: int) -> tuple[TableDelta, SlotCopies]:
        """Make lent `rows` (int32 [n], distinct, of one side) whole; fresh blocks are there."""
        restore = self._plan(rows)
        self._state.restore(restore, job_id)
        tables = TableDelta(restore.column_rows, restore.positions, restore.after.copy())
        return tables, self._copies(restore)

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
