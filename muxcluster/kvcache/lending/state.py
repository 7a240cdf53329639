"""The one owner of what sequences lend: whose blocks, where their tokens are, which jobs copy them.

BROS §5. Other modules of this package choose what to lend, save and restore; only `LentState`
changes anything, by `lend`, `take`, `save`, `restore` and `close`, and by `leave`, `take_back` and
`end_job`, which undo them. (`ColumnsOverLent.safe`, a bound that only saves time, is `Saving`'s.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.kvcache.lending.blocks import (
    NO_BLOCK,
    NO_RUNS,
    NUM_TIERS,
    HostBlocks,
    Runs,
    TakeableBlocks,
    runs,
)
from muxcluster.kvcache.model import ModelKv
from muxcluster.kvcache.pool import LEFT, RIGHT, BlockLedger, BlockPool
from muxcluster.kvcache.tables import Lack

Chosen = NDArray[np.bool_] | slice  # some of an array: bool [n], or all of it
BOTH = LEFT | RIGHT
_NO_BLOCKS = np.empty(0, dtype=np.int32)


class Lenders:
    """Who lent each block of the pool; valid for blocks of lent columns and sources of restores.

    A lender is the right owner of its block, also an interactive sequence, whose tokens lie from
    the left; the sequence that takes the block is the left owner.
    """

    def __init__(self, num_blocks: int) -> None:
        self.models = np.zeros(num_blocks, dtype=np.uint8)  # index of the lender's model
        # Where in that model: column * blocks_per_column + index in the column.
        self.cells = np.zeros(num_blocks, dtype=np.int64)
        # Places of that model, from the left, that are empty or saved, so left tokens may cover
        # them; it starts at the first filled place. All is saved where it reaches the end.
        self.saved = np.zeros(num_blocks, dtype=np.int16)
        self.ends = np.zeros(num_blocks, dtype=np.int16)  # end of the filled places
        self.is_left = np.zeros(num_blocks, dtype=np.bool_)  # the lender is an interactive one
        self.is_source = np.zeros(num_blocks, dtype=np.bool_)  # a running job restores from it


@dataclass(frozen=True, slots=True, eq=False)
class Restore:
    """Lent columns of one model's sequences, all of one side, that a running job makes whole."""

    kv: ModelKv
    is_left: bool
    rows: NDArray[np.int32]  # int32 [n], the sequences
    counts: NDArray[np.int32]  # int32 [n], lent columns of each
    ends: NDArray[np.int32]  # int32 [n], all columns of each at that time
    # Of each lent column but kept ones, those of one sequence together and in order, int32 [m]:
    column_rows: NDArray[np.int32]
    positions: NDArray[np.int32]
    columns: NDArray[np.int32]
    before: NDArray[np.int32]  # int32 [m, blocks_per_column], NO_BLOCK for one that is gone
    after: NDArray[np.int32]  # same shape; `LentState.restore` fills in the fresh ones
    is_fresh: NDArray[np.bool_]  # same shape, True where the block is gone or taken
    sources: NDArray[np.int32]  # blocks of `before` that are taken, whose tokens are moved


@dataclass(slots=True, eq=False)
class JobCopies:
    """The copies of one running job."""

    host_blocks: list[NDArray[np.int32]] = field(default_factory=list)  # to which it saves
    # (kind of layers, row) whose tokens it saves
    saved: set[tuple[str, int]] = field(default_factory=set)
    restores: list[Restore] = field(default_factory=list)
    # (kind of layers, row) of left sequences over blocks it restores from: must not run meanwhile
    blocked: set[tuple[str, int]] = field(default_factory=set)


class LentState:
    """Lent blocks of one unit's pool, beside each model's `lent` and `over_lent` columns."""

    def __init__(
        self,
        pool: BlockPool,
        ledger: BlockLedger,
        models: Mapping[str, Sequence[ModelKv]],
        num_host_blocks: int,
        *,
        is_on: bool,
    ) -> None:
        """models: the kinds of layers of each model. is_on: False where no block is ever lent."""
        num_blocks = pool.num_blocks if is_on else 0
        self.is_on = is_on
        self.pool, self.ledger = pool, ledger
        self.kinds = dict(models)
        self.models = tuple(kv for kinds in models.values() for kv in kinds)
        self.index = {kv.name: i for i, kv in enumerate(self.models)}
        self.host_blocks = HostBlocks(num_host_blocks if is_on else 0)
        self.takeable = TakeableBlocks(num_blocks)
        self.lenders = Lenders(num_blocks)
        self.jobs: dict[int, JobCopies] = {}  # by job id, until each has ended

    # Questions

    def is_batch(self, owner: int) -> bool:
        """True where blocks of the owner bit are counted apart, without a quota."""
        return self.is_on and owner == RIGHT

    def num_batch(self, kv: ModelKv, lack: Lack) -> int:
        """Return how many blocks of `lack` are for right sequences; 0 where all count alike."""
        if not self.is_on:
            return 0
        assert not np.count_nonzero(kv.lent.counts[lack.rows]), "a lent sequence grows"
        is_right = kv.sequences.owners[lack.rows] == RIGHT
        num_right = np.count_nonzero(is_right)
        if num_right in (0, len(is_right)):  # jobs mostly grow one class at a time
            columns = lack.total if num_right else 0
        else:
            columns = int((lack.wanted - lack.held)[is_right].sum())
        return columns * kv.columns.blocks_per_column

    def is_taken(self, blocks: NDArray[np.int32]) -> NDArray[np.bool_]:
        """True for `blocks` (ints, any shape) with a left owner and a lender."""
        taken: NDArray[np.bool_] = self.pool.owners[blocks] == BOTH
        return taken

    def untaken(self, blocks: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return those of `blocks` (int32 [n]) whose only owner is their lender."""
        found: NDArray[np.int32] = blocks[self.pool.owners[blocks] == RIGHT]
        return found

    def by_model(self, blocks: NDArray[np.integer]) -> list[tuple[ModelKv, Chosen]]:
        """Return the lenders' models of `blocks` (ints [n]) and which blocks are theirs."""
        models = self.lenders.models[blocks]
        present = np.bincount(models).nonzero()[0].tolist()
        if len(present) == 1:
            return [(self.models[present[0]], slice(None))]
        return [(self.models[index], models == index) for index in present]

    @property
    def restores(self) -> Iterator[Restore]:
        """The restores of all running jobs."""
        return (restore for job in self.jobs.values() for restore in job.restores)

    def is_blocked(self, kv: ModelKv, row: int) -> bool:
        """True while a job restores from a block that the left sequence lies over."""
        return any((kv.name, row) in job.blocked for job in self.jobs.values())

    def blocked(self, kv: ModelKv) -> NDArray[np.bool_] | None:
        """Return which sequences of `kv` are blocked, bool [max_seqs], or None for none."""
        name = kv.name
        rows = [row for job in self.jobs.values() for model, row in job.blocked if model == name]
        if not rows:
            return None
        mask = np.zeros(kv.model.max_seqs, dtype=np.bool_)
        mask[rows] = True
        return mask

    # Lend

    def lend(
        self,
        kv: ModelKv,
        row: int,
        columns: NDArray[np.int32],
        filled: NDArray[np.int64],
        is_kept: NDArray[np.bool_],
    ) -> int:
        """Lend the last whole `columns` (deepest first) of a sequence; return the blocks lent.

        filled: tokens in each. is_kept: those that stay as they are. All [n].
        """
        owner = int(kv.sequences.owners[row])
        kv.lent.lend(row, columns, filled, is_kept)
        kv.sequences.uncommit(row, int(kv.sequences.num_columns[row] - kv.lent.counts[row]))
        lost = columns[~is_kept]
        kv.prefix.unpublish(lost)
        kv.over_lent.forget(lost)
        self._give_up_empty(kv, row, columns[filled == 0])
        self._offer_filled(kv, columns[(filled > 0) & ~is_kept], is_left=owner == LEFT)
        return len(lost) * kv.columns.blocks_per_column

    def _give_up_empty(self, kv: ModelKv, row: int, columns: NDArray[np.int32]) -> None:
        """Free the blocks of lent columns without tokens at once."""
        if len(columns) == 0:
            return
        blocks = kv.columns.blocks[columns].ravel()
        kv.columns.blocks[columns] = NO_BLOCK
        kv.lent.costs[row] += len(blocks)
        self._free(kv, blocks, is_left=kv.sequences.owners[row] == LEFT)

    def _free(self, kv: ModelKv, blocks: NDArray[np.int32], *, is_left: bool) -> None:
        """Take `blocks` (int32 [n]) from sequences of `kv` of one side."""
        if is_left:
            self.leave(kv, blocks)
            return
        self.pool.drop(blocks, RIGHT)
        self.ledger.give(kv.model.name, len(blocks), is_batch=True)

    def _offer_filled(self, kv: ModelKv, columns: NDArray[np.int32], *, is_left: bool) -> None:
        """Let left sequences take the blocks of lent columns with tokens."""
        per_column, lenders = kv.columns.blocks_per_column, self.lenders
        blocks = kv.columns.blocks[columns].ravel()
        kv.lent.host_blocks[columns] = self.host_blocks.take(len(blocks)).reshape(-1, per_column)
        lenders.models[blocks] = self.index[kv.name]
        cells = columns[:, None] * np.int64(per_column) + np.arange(per_column)
        lenders.cells[blocks] = cells.ravel()
        first, end = kv.lent.places(columns, kv.block_tokens, is_left=is_left)
        lenders.saved[blocks] = first.repeat(per_column)
        lenders.ends[blocks] = end.repeat(per_column)
        lenders.is_left[blocks] = is_left
        if is_left:
            self.pool.share(blocks, RIGHT)
            self.pool.drop(blocks, LEFT)
        self._offer(kv, blocks)

    def _offer(self, kv: ModelKv, blocks: NDArray[np.int32]) -> None:
        """Make `blocks` (int32 [n]), right-owned by `kv` alone and in lent columns, takeable."""
        unsaved = (self.lenders.ends[blocks] - self.lenders.saved[blocks]).astype(np.int32)
        self.takeable.add(blocks, (kv.block_tokens - unsaved) * NUM_TIERS // kv.block_tokens)
        self._count_lent(kv, blocks)

    def _count_lent(self, kv: ModelKv, blocks: NDArray[np.int32], by: int = 1) -> None:
        """Charge `blocks` (int32 [n]) of `kv` to nobody (by=1), or to their lenders (-1)."""
        num_left = int(np.count_nonzero(self.lenders.is_left[blocks]))
        self.ledger.lend(kv.model.name, by * (len(blocks) - num_left))
        self.ledger.lend(kv.model.name, by * num_left, is_batch=False)

    def _raise_costs(self, blocks: NDArray[np.int32], by: int) -> None:
        """Note that lent `blocks` (int32 [n]) are taken (by=1), or untaken again (-1)."""
        for kv, ours in self.by_model(blocks):
            columns = self.lenders.cells[blocks[ours]] // kv.columns.blocks_per_column
            np.add.at(kv.lent.costs, kv.lent.rows[columns], by)

    # Take

    def take(self, kv: ModelKv, lack: Lack, num_batch: int, *, num_kept: int = 0) -> TableDelta:
        """Give growing sequences their columns: free blocks, then lent ones to left sequences.

        num_batch: how many of the blocks are for right sequences. num_kept: free blocks that are
        not taken.
        """
        blocks = lack.total * kv.columns.blocks_per_column
        num_lent = max(0, blocks + num_kept - self.ledger.free)
        self.ledger.free_lent(num_lent)
        self.ledger.take(kv.model.name, blocks - num_batch)
        self.ledger.take(kv.model.name, num_batch, is_batch=True)
        if num_lent == 0:
            return kv.extend(lack, self.pool.allocate)
        grown = kv.extend(lack, partial(self._allocate, num_kept=num_kept))
        columns = kv.sequences.columns[grown.rows, grown.columns]
        self._list_over_lent(kv, grown.rows, grown.columns, columns, grown.blocks)
        return grown

    def _allocate(self, owners: NDArray[np.uint8], num_kept: int = 0) -> NDArray[np.int32]:
        """Return a block for each owner bit (uint8 [n]): free ones, lent ones for left owners.

        num_kept: free blocks that are not taken.
        """
        num_free = self.pool.free - num_kept
        if len(owners) <= num_free:
            return self.pool.allocate(owners)
        order = np.argsort(owners == LEFT, kind="stable")
        taken = self.takeable.take(len(owners) - num_free)
        self.pool.share(taken, LEFT)
        self._raise_costs(taken, 1)
        ids = np.empty(len(owners), dtype=np.int32)
        ids[order[:num_free]] = self.pool.allocate(owners[order[:num_free]])
        ids[order[num_free:]] = taken
        return ids

    def _list_over_lent(
        self,
        kv: ModelKv,
        rows: NDArray[np.int32],
        positions: NDArray[np.int32],
        columns: NDArray[np.int32],
        blocks: NDArray[np.int32],
    ) -> None:
        """List those columns (all int32 [n], blocks [n, blocks_per_column]) over lent blocks."""
        is_over = self.is_taken(blocks).any(axis=1)
        kv.over_lent.add(rows[is_over], positions[is_over], columns[is_over])

    def leave(self, kv: ModelKv, blocks: NDArray[np.int32]) -> None:
        """Undo `take`: left sequences give up `blocks` (int32 [n]), free or lent again."""
        taken = blocks[self.is_taken(blocks)]
        self.pool.drop(blocks, LEFT)
        self.ledger.give(kv.model.name, len(blocks))
        if len(taken):
            self.take_back(taken)

    def take_back(self, blocks: NDArray[np.int32]) -> None:
        """Lend `blocks` (int32 [n], counted as free), whose left owners have gone, again.

        Those that a running job restores from belong to their lender until it has ended.
        """
        self.ledger.free_lent(-len(blocks))
        is_source = self.lenders.is_source[blocks]
        self._raise_costs(blocks[~is_source], -1)
        for kv, ours in self.by_model(blocks):
            theirs = blocks[ours]
            self._count_lent(kv, theirs, -1)
            self._offer(kv, theirs[~is_source[ours]])

    # Save

    def save(
        self, victim: ModelKv, blocks: NDArray[np.intp], ends: NDArray[np.int32], job_id: int
    ) -> Runs:
        """Return the copies with which job `job_id` saves `blocks` of a lender up to `ends`, [n].

        A block of which all is saved has no lender any more.
        """
        lenders = self.lenders
        saved = lenders.saved[blocks].astype(np.int32)
        is_due = ends > saved
        num_due = np.count_nonzero(is_due)
        if num_due == 0:
            return NO_RUNS
        if num_due < len(blocks):
            blocks, ends, saved = blocks[is_due], ends[is_due], saved[is_due]
        is_source = lenders.is_source[blocks]
        assert not np.count_nonzero(is_source), "a running job restores what would be lost"
        cells = lenders.cells[blocks]
        host_blocks = victim.lent.host_blocks.ravel()[cells]
        copies = runs(blocks, host_blocks, victim.block_tokens, saved, ends)
        lenders.saved[blocks] = ends
        is_gone = ends == lenders.ends[blocks]
        if np.count_nonzero(is_gone):
            self.pool.drop(blocks[is_gone], RIGHT)
            victim.columns.blocks.ravel()[cells[is_gone]] = NO_BLOCK
        rows = victim.lent.rows[cells // victim.columns.blocks_per_column]
        self._note_save(victim, np.bincount(rows).nonzero()[0], host_blocks, job_id)
        return copies

    def _note_save(
        self, victim: ModelKv, rows: NDArray[np.intp], host_blocks: NDArray[np.int32], job_id: int
    ) -> None:
        job, name = self._job(job_id), victim.name
        self.host_blocks.touch(host_blocks)
        job.host_blocks.append(host_blocks)
        for row in rows.tolist():
            if (name, row) not in job.saved:
                job.saved.add((name, row))
                victim.lent.num_saving[row] += 1

    def _job(self, job_id: int) -> JobCopies:
        return self.jobs.setdefault(job_id, JobCopies())

    def save_and_free(self, kv: ModelKv, blocks: NDArray[np.int32], job_id: int) -> Runs:
        """Free untaken lent `blocks` (int32 [n]); return the copies with which a job saves them."""
        self.takeable.remove(blocks)
        self._raise_costs(blocks, 1)
        self.ledger.free_lent(len(blocks))
        ends = self.lenders.ends[blocks].astype(np.int32)
        return self.save(kv, blocks.astype(np.intp), ends, job_id)

    # Restore

    def restore(self, restores: Sequence[Restore], job_id: int) -> None:
        """Make sequences whole with job `job_id`; the fresh blocks they need are there.

        restores: of the kinds of layers of one model. Blocks that nobody took stay in place. The
        caller has made room for the others.
        """
        for restore in restores:  # of all kinds first: what is fresh must not be one of them
            in_place = restore.before[~restore.is_fresh]
            self._return_in_place(restore.kv, in_place, is_left=restore.is_left)
        job = self._job(job_id)
        for restore in restores:
            self._restore(restore)
            job.restores.append(restore)
        if any(len(restore.sources) for restore in restores):
            job.blocked |= self._over_sources()

    def _restore(self, restore: Restore) -> None:
        kv, rows, is_fresh = restore.kv, restore.rows, restore.is_fresh
        num_fresh = int(np.count_nonzero(is_fresh))
        restore.after[is_fresh] = self._take_fresh(kv, num_fresh, is_left=restore.is_left)
        self.lenders.is_source[restore.sources] = True
        kv.columns.blocks[restore.columns] = restore.after
        kv.lent.counts[rows] = kv.lent.costs[rows] = 0
        kv.lent.is_restoring[rows] = True
        if restore.is_left:
            self._list_restored(restore)

    def _return_in_place(self, kv: ModelKv, blocks: NDArray[np.int32], *, is_left: bool) -> None:
        self.takeable.remove(blocks)
        self._count_lent(kv, blocks, -1)
        if is_left:
            self.pool.share(blocks, LEFT)
            self.pool.drop(blocks, RIGHT)

    def _take_fresh(self, kv: ModelKv, count: int, *, is_left: bool) -> NDArray[np.int32]:
        """Take free blocks, and for left sequences lent ones where these are short."""
        self.ledger.free_lent(max(0, count - self.ledger.free))
        self.ledger.take(kv.model.name, count, is_batch=not is_left)
        return self._allocate(np.full(count, LEFT if is_left else RIGHT, dtype=np.uint8))

    def _list_restored(self, restore: Restore) -> None:
        self._list_over_lent(
            restore.kv, restore.column_rows, restore.positions, restore.columns, restore.after
        )

    def _over_sources(self) -> set[tuple[str, int]]:
        """Return (kind, row) of left sequences over a block that a running job restores from."""
        blocked: set[tuple[str, int]] = set()
        for kv in self.models:
            blocks = kv.columns.blocks[kv.over_lent.columns]
            hit = self.lenders.is_source[blocks].any(axis=1)
            blocked |= {(kv.name, row) for row in kv.over_lent.rows[hit].tolist()}
        return blocked

    # The end of a job

    def end_job(self, job_id: int, *, succeeded: bool) -> list[tuple[str, int]]:
        """End a job; if it failed, undo its restores and return (model, row) of lost saves."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return []
        for host_blocks in job.host_blocks:
            self.host_blocks.settle(host_blocks)
        for model, row in job.saved:
            lent = self.models[self.index[model]].lent
            lent.num_saving[row] -= 1
            lent.is_spoiled[row] |= not succeeded
        for restore in job.restores:
            self._release_sources(restore)
            (self._finish if succeeded else self._undo)(restore)
        if succeeded:
            return []
        names = {kv.name: kv.model.name for kv in self.models}
        return sorted({(names[name], row) for name, row in job.saved})

    def reset(self) -> None:
        """End all running jobs as failed."""
        for job_id in list(self.jobs):
            self.end_job(job_id, succeeded=False)

    def _release_sources(self, restore: Restore) -> None:
        self.lenders.is_source[restore.sources] = False
        restore.kv.lent.is_restoring[restore.rows] = False

    def _finish(self, restore: Restore) -> None:
        kv, sources = restore.kv, restore.sources
        orphans = self.untaken(sources)
        self.pool.drop(sources, RIGHT)
        self.ledger.give(kv.model.name, len(orphans), is_batch=not restore.is_left)
        self.host_blocks.give(kv.lent.host_blocks_of(restore.columns))
        kv.lent.num_empty -= kv.lent.count_empty(restore.columns)

    def _undo(self, restore: Restore) -> None:
        kv, before, after = restore.kv, restore.before, restore.after
        self._drop_grown(restore)
        if restore.is_left:
            kv.over_lent.forget(restore.columns)
        self._free(kv, after[restore.is_fresh], is_left=restore.is_left)
        if restore.is_left:
            in_place = after[~restore.is_fresh]
            self.pool.share(in_place, RIGHT)
            self.pool.drop(in_place, LEFT)
        kv.columns.blocks[restore.columns] = before
        kv.lent.counts[restore.rows] = restore.counts
        self._offer(kv, self.untaken(before[before != NO_BLOCK]))
        is_needed = (before == NO_BLOCK) | (self.pool.owners[before] & LEFT != 0)
        np.add.at(kv.lent.costs, restore.column_rows, np.count_nonzero(is_needed, axis=1))

    def _drop_grown(self, restore: Restore) -> None:
        """Take the columns that the restored sequences got since: nothing in them is valid."""
        kv = restore.kv
        for row, end in zip(restore.rows.tolist(), restore.ends.tolist(), strict=True):
            grown = kv.sequences.truncate(row, end)
            kv.columns.detach(grown, LEFT if restore.is_left else RIGHT)
            if len(grown):
                if restore.is_left:
                    kv.over_lent.forget(grown)
                self._free(kv, kv.columns.remove(grown)[0], is_left=restore.is_left)

    # Close

    def close(self, kv: ModelKv, row: int) -> NDArray[np.int32]:
        """Give back what a sequence lent, which is about to end.

        Returns the lent blocks that it took if it is a left one, int32 [n].
        """
        if not self.is_on:
            return _NO_BLOCKS
        for job in self.jobs.values():
            job.saved.discard((kv.name, row))
            job.blocked.discard((kv.name, row))
        self._close_lent(kv, row)
        if kv.sequences.owners[row] == RIGHT:
            return _NO_BLOCKS
        is_ours = kv.over_lent.rows == row
        if not np.count_nonzero(is_ours):
            return _NO_BLOCKS
        blocks = kv.columns.blocks[kv.over_lent.columns[is_ours]].ravel()
        kv.over_lent.keep(~is_ours)
        taken: NDArray[np.int32] = blocks[self.is_taken(blocks)]
        return taken

    def _close_lent(self, kv: ModelKv, row: int) -> None:
        """Remove the lent columns of a sequence but kept ones, and free their host blocks."""
        lent = kv.lent
        assert not lent.is_restoring[row], "a sequence is closed that a running job restores"
        count = int(lent.counts[row])
        lent.forget(row)
        if count == 0:
            return
        columns = kv.sequences.truncate(row, int(kv.sequences.num_columns[row]) - count)
        is_kept = lent.is_kept[columns]
        kv.sequences.put_back(row, columns[is_kept])
        columns = columns[~is_kept]
        self.host_blocks.give(lent.host_blocks_of(columns))
        lent.num_empty -= lent.count_empty(columns)
        kv.columns.detach(columns, int(kv.sequences.owners[row]))
        blocks, _ = kv.columns.remove(columns)
        blocks = blocks[blocks != NO_BLOCK]
        untaken = self.untaken(blocks)
        self.pool.drop(blocks, RIGHT)
        self.takeable.remove(untaken)
        self.ledger.free_lent(len(untaken))
