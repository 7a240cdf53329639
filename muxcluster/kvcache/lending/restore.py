"""Making lent sequences whole again, and undoing it where the job fails (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.copies import NO_RUNS, runs
from muxcluster.kvcache.lending.running_jobs import Restore
from muxcluster.kvcache.lending.state import BOTH, LEFT, RIGHT, Sharing
from muxcluster.kvcache.lending.tails import lent_entries
from muxcluster.kvcache.model import Shortage
from muxcluster.kvcache.model_kv import ModelKv


class Restoring:
    """Gives lent columns their blocks back; a restore is final when its job has succeeded."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def can_restore(self, kv: ModelKv, slot: int) -> bool:
        """False while copies of `slot` are on their way or lost, and while it is `blocked`."""
        return not (kv.lent.is_busy(slot) or self._sharing.jobs.blocks(kv.model.name, slot))

    def shortage(
        self, kv: ModelKv, slots: NDArray[np.int32], spare: int = 0
    ) -> tuple[int, Shortage | None]:
        """Fresh blocks that lent `slots` (of one side) and `spare` need; whether they are there."""
        fresh, ledger = int(kv.lent.costs[slots].sum()), self._sharing.ledger
        blocks = fresh + spare
        if kv.sequences.owners[slots[0]] == RIGHT:
            return blocks, ledger.shortage(kv.model.name, blocks, blocks)
        _, _, columns = lent_entries(kv, slots)
        num_returned = len(columns) * kv.columns.blocks_per_column - fresh
        return blocks, ledger.shortage(kv.model.name, blocks, num_returned=num_returned)

    def restore(
        self, kv: ModelKv, slots: NDArray[np.int32], job_id: int
    ) -> tuple[TableDelta, SlotCopies]:
        """Make lent `slots` (int32 [n], distinct, of one side) whole; fresh blocks are there."""
        restore = self._plan(kv, slots)
        copies = self._copies(restore)
        self._apply(restore)
        if restore.is_left:
            self._share(restore)
        job = self._sharing.jobs.of(job_id)
        job.restores.append(restore)
        if len(restore.sources):
            job.blocked |= self._over_sources()
        tables = TableDelta(restore.rows, restore.positions, restore.after.copy())
        return tables, copies

    def _plan(self, kv: ModelKv, slots: NDArray[np.int32]) -> Restore:
        sharing, lent, table = self._sharing, kv.lent, kv.sequences
        assert not any(map(lent.is_busy, slots.tolist())), "copies of a sequence are on their way"
        owner = int(table.owners[slots[0]])
        assert (table.owners[slots] == owner).all(), "sequences of both sides are restored"
        rows, positions, columns = lent_entries(kv, slots)
        before = kv.columns.blocks[columns]
        is_gone = before == NO_BLOCK
        is_taken = ~is_gone & (sharing.pool.owners[before] == BOTH)
        is_fresh = is_gone | is_taken
        after = before.copy()
        self._take_in_place(kv, before[~is_fresh], owner)
        after[is_fresh] = self._take_fresh(kv, int(np.count_nonzero(is_fresh)), owner)
        return Restore(
            kv=kv,
            is_left=owner == LEFT,
            slots=slots.copy(),
            counts=lent.counts[slots],
            ends=table.num_columns[slots],
            rows=rows,
            positions=positions,
            columns=columns,
            before=before,
            after=after,
            is_fresh=is_fresh,
            sources=before[is_taken],
        )

    def _take_in_place(self, kv: ModelKv, blocks: NDArray[np.int32], owner: int) -> None:
        sharing = self._sharing
        sharing.lent.remove(blocks)
        sharing.count_lent(kv, blocks, -1)
        if owner == LEFT:
            sharing.pool.share(blocks, LEFT)
            sharing.pool.drop(blocks, RIGHT)

    def _take_fresh(self, kv: ModelKv, count: int, owner: int) -> NDArray[np.int32]:
        """Free blocks, and for interactive sequences lent ones where these are short."""
        sharing, ledger = self._sharing, self._sharing.ledger
        ledger.free_lent(max(0, count - ledger.free))
        ledger.take(kv.model.name, count, is_batch=owner == RIGHT)
        return sharing.allocate(np.full(count, owner, dtype=np.uint8))

    def _copies(self, restore: Restore) -> SlotCopies:
        """Saved places come from the frames, the others from blocks that are left behind."""
        kv, rights = restore.kv, self._sharing.rights
        is_gone = restore.before == NO_BLOCK
        shape, width = restore.before.shape, kv.block_tokens
        first, end = kv.lent.places(restore.columns, width, is_left=restore.is_left)
        first, end = (np.broadcast_to(each[:, None], shape) for each in (first, end))
        saved = np.where(is_gone, end, rights.saved[restore.before]).astype(np.int32)
        frames = kv.lent.frames[restore.columns]
        has_moved = restore.is_fresh & ~is_gone
        after = restore.after[has_moved]
        return SlotCopies(
            kv.model.name,
            saves=NO_RUNS,
            moves=runs(restore.sources, after, width, saved[has_moved], end[has_moved]),
            restores=runs(
                frames.ravel(), restore.after.ravel(), width, first.ravel(), saved.ravel()
            ),
        )

    def blocked(self, kv: ModelKv) -> NDArray[np.bool_] | None:
        """Left slots over a block that a running job restores from, bool [max_seqs], or None."""
        name = kv.model.name
        slots = [slot for job in self._sharing.jobs for model, slot in job.blocked if model == name]
        if not slots:
            return None
        mask = np.zeros(kv.model.max_seqs, dtype=np.bool_)
        mask[slots] = True
        return mask

    def _apply(self, restore: Restore) -> None:
        sharing, kv, slots = self._sharing, restore.kv, restore.slots
        sharing.rights.is_source[restore.sources] = True
        kv.columns.blocks[restore.columns] = restore.after
        kv.lent.counts[slots] = kv.lent.costs[slots] = 0
        kv.lent.is_restoring[slots] = True

    def _share(self, restore: Restore) -> None:
        """List the columns that lie over lent blocks now."""
        is_over = (self._sharing.pool.owners[restore.after] == BOTH).any(axis=1)
        rows, positions = restore.rows[is_over], restore.positions[is_over]
        restore.kv.shared.add(rows, positions, restore.columns[is_over])

    def _over_sources(self) -> set[tuple[str, int]]:
        """The left sequences that lie over a block some running job restores from."""
        is_source = self._sharing.rights.is_source
        blocked: set[tuple[str, int]] = set()
        for kv in self._sharing.models:
            hit = is_source[kv.columns.blocks[kv.shared.columns]].any(axis=1)
            blocked |= {(kv.model.name, slot) for slot in kv.shared.slots[hit].tolist()}
        return blocked

    def end(self, job_id: int, *, succeeded: bool) -> list[tuple[str, int]]:
        """The job has ended: the sequences whose saves are lost, each (model, slot)."""
        sharing = self._sharing
        job = sharing.jobs.pop(job_id)
        if job is None:
            return []
        for frames in job.frames:
            sharing.frames.settle(frames)
        for model, slot in job.saved:
            lent = sharing.models[sharing.index[model]].lent
            lent.num_saving[slot] -= 1
            lent.is_spoiled[slot] |= not succeeded
        for restore in job.restores:
            (self._finish if succeeded else self._undo)(restore)
        return [] if succeeded else sorted(job.saved)

    def reset(self) -> None:
        """All running jobs have failed, and nobody asks whose saves are lost."""
        for job_id in self._sharing.jobs.ids:
            self.end(job_id, succeeded=False)

    def _finish(self, restore: Restore) -> None:
        sharing, kv = self._sharing, restore.kv
        self._release_sources(restore)
        orphans = restore.sources[sharing.pool.owners[restore.sources] == RIGHT]
        sharing.pool.drop(restore.sources, RIGHT)
        sharing.ledger.give(kv.model.name, len(orphans), is_batch=not restore.is_left)
        sharing.frames.give(kv.lent.frames_of(restore.columns))
        kv.lent.num_empty -= kv.lent.count_empty(restore.columns)

    def _release_sources(self, restore: Restore) -> None:
        self._sharing.rights.is_source[restore.sources] = False
        restore.kv.lent.is_restoring[restore.slots] = False

    def _undo(self, restore: Restore) -> None:
        sharing, kv = self._sharing, restore.kv
        self._release_sources(restore)
        self._drop_grown(restore)
        self._drop(restore, restore.columns, restore.after[restore.is_fresh])
        if restore.is_left:
            in_place = restore.after[~restore.is_fresh]
            sharing.pool.share(in_place, RIGHT)
            sharing.pool.drop(in_place, LEFT)
        kv.columns.blocks[restore.columns] = restore.before
        kv.lent.counts[restore.slots] = restore.counts
        present = restore.before[restore.before != NO_BLOCK]
        sharing.lend(kv, present[sharing.pool.owners[present] == RIGHT])
        self._count_costs(restore)

    def _drop_grown(self, restore: Restore) -> None:
        """Take the columns that the restored sequences got since: nothing in them is valid."""
        kv = restore.kv
        for slot, end in zip(restore.slots.tolist(), restore.ends.tolist(), strict=True):
            grown = kv.sequences.truncate(slot, end)
            kv.columns.detach(grown)
            if len(grown):
                self._drop(restore, grown, kv.columns.remove(grown)[0])

    def _drop(
        self, restore: Restore, columns: NDArray[np.int32], blocks: NDArray[np.int32]
    ) -> None:
        """`blocks` that `columns` of the restored sequences got since are theirs no longer."""
        sharing, kv = self._sharing, restore.kv
        if restore.is_left:
            kv.shared.forget(columns)
            sharing.leave(kv, blocks)
            return
        sharing.pool.drop(blocks, RIGHT)
        sharing.ledger.give(kv.model.name, len(blocks), is_batch=True)

    def _count_costs(self, restore: Restore) -> None:
        before, owners = restore.before, self._sharing.pool.owners
        is_needed = (before == NO_BLOCK) | (owners[before] & LEFT != 0)
        np.add.at(restore.kv.lent.costs, restore.rows, np.count_nonzero(is_needed, axis=1))
