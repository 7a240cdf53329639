"""Making lent sequences whole again, and undoing it where the job fails (BROS §5)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.kvcache.copies import NO_RUNS, num_slots, runs
from muxcluster.kvcache.lentcolumns import NO_BLOCK
from muxcluster.kvcache.modelkv import ModelKv
from muxcluster.kvcache.running import Restore
from muxcluster.kvcache.sharing import BOTH, LEFT, RIGHT, Sharing


class Restoring:
    """Gives lent columns their blocks back; a restore is final when its job has succeeded."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def restore(
        self, kv: ModelKv, slots: NDArray[np.int32], job_id: int
    ) -> tuple[TableDelta, SlotCopies]:
        """Make lent `slots` (int32 [n], distinct) whole; fresh blocks are there and charged."""
        restore = self._plan(kv, slots)
        copies = self._copies(restore)
        self._apply(restore)
        job = self._sharing.jobs.of(job_id)
        job.restores.append(restore)
        if len(restore.sources):
            job.blocked |= self._over_sources()
        self._sharing.num_restored_slots += num_slots(copies.restores)
        tables = TableDelta(slots.repeat(restore.counts), _positions(restore), restore.after.copy())
        return tables, copies

    def _plan(self, kv: ModelKv, slots: NDArray[np.int32]) -> Restore:
        sharing, lent, table = self._sharing, kv.lent, kv.sequences
        assert not any(map(lent.is_busy, slots.tolist())), "copies of a sequence are on their way"
        counts, ends = lent.counts[slots], table.num_columns[slots]
        positions = _tail_positions(counts, ends)
        columns = table.columns[slots.repeat(counts), positions]
        before = kv.columns.blocks[columns]
        is_gone = before == NO_BLOCK
        is_taken = ~is_gone & (sharing.pool.owners[before] == BOTH)
        is_fresh = is_gone | is_taken
        after = before.copy()
        fresh = sharing.pool.allocate(np.full(np.count_nonzero(is_fresh), RIGHT, dtype=np.uint8))
        after[is_fresh] = fresh
        sharing.ledger.take(kv.model.name, len(fresh), is_batch=True)
        return Restore(
            kv, slots.copy(), counts, ends, columns, before, after, is_fresh, before[is_taken]
        )

    def _copies(self, restore: Restore) -> SlotCopies:
        """Saved places come from the frames, the others from blocks that are left behind."""
        kv, rights = restore.kv, self._sharing.rights
        is_gone = restore.before == NO_BLOCK
        shape, width = restore.before.shape, kv.block_tokens
        saved = np.where(is_gone, width, rights.saved[restore.before]).astype(np.int32)
        first = width - kv.lent.filled[restore.columns]
        first = np.broadcast_to(first[:, None], shape)
        frames = kv.lent.frames[restore.columns]
        has_moved = restore.is_fresh & ~is_gone
        last = np.full(len(restore.sources), width, dtype=np.int32)
        after = restore.after[has_moved]
        return SlotCopies(
            kv.model.name,
            saves=NO_RUNS,
            moves=runs(restore.sources, after, width, saved[has_moved], last),
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
        in_place = restore.before[~restore.is_fresh]
        sharing.lent.remove(in_place)
        sharing.ledger.unlend(kv.model.name, len(in_place))
        kv.columns.blocks[restore.columns] = restore.after
        kv.lent.counts[slots] = kv.lent.costs[slots] = 0
        kv.lent.is_restoring[slots] = True

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
        sharing.ledger.give(kv.model.name, len(orphans), is_batch=True)
        sharing.frames.give(kv.lent.frames_of(restore.columns))
        kv.lent.num_empty -= kv.lent.count_empty(restore.columns)

    def _release_sources(self, restore: Restore) -> None:
        self._sharing.rights.is_source[restore.sources] = False
        restore.kv.lent.is_restoring[restore.slots] = False

    def _undo(self, restore: Restore) -> None:
        sharing, kv, name = self._sharing, restore.kv, restore.kv.model.name
        self._release_sources(restore)
        self._drop_grown(restore)
        fresh = restore.after[restore.is_fresh]
        sharing.pool.drop(fresh, RIGHT)
        sharing.ledger.give(name, len(fresh), is_batch=True)
        kv.columns.blocks[restore.columns] = restore.before
        kv.lent.counts[restore.slots] = restore.counts
        present = restore.before[restore.before != NO_BLOCK]
        sharing.lend(kv, present[sharing.pool.owners[present] == RIGHT])
        self._count_costs(restore)

    def _drop_grown(self, restore: Restore) -> None:
        """Take the columns that the restored sequences got since: nothing in them is valid."""
        sharing, kv = self._sharing, restore.kv
        for slot, end in zip(restore.slots.tolist(), restore.ends.tolist(), strict=True):
            grown = kv.sequences.truncate(slot, end)
            kv.columns.detach(grown)
            sharing.pool.release(*kv.columns.remove(grown))
            blocks = len(grown) * kv.columns.blocks_per_column
            sharing.ledger.give(kv.model.name, blocks, is_batch=True)

    def _count_costs(self, restore: Restore) -> None:
        before, owners = restore.before, self._sharing.pool.owners
        is_needed = (before == NO_BLOCK) | (owners[before] & LEFT != 0)
        slots = restore.slots.repeat(restore.counts)
        np.add.at(restore.kv.lent.costs, slots, np.count_nonzero(is_needed, axis=1))


def _tail_positions(counts: NDArray[np.int32], ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """ends[i]-counts[i] .. ends[i]-1 for each i, one after the other, int32 [sum(counts)]."""
    stops = counts.cumsum()
    positions = np.arange(counts.sum()) + (ends - stops).repeat(counts)
    return np.asarray(positions, dtype=np.int32)


def _positions(restore: Restore) -> NDArray[np.int32]:
    return _tail_positions(restore.counts, restore.ends)
