"""Saving slots of lent blocks just before they are overwritten (BROS §5, lazily)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.copies import NO_RUNS, Runs, runs
from muxcluster.kvcache.lending.running_jobs import JobCopies
from muxcluster.kvcache.lending.state import BOTH, RIGHT, Sharing
from muxcluster.kvcache.lending.tails import lent_entries
from muxcluster.kvcache.model_kv import ModelKv


class Saving:
    """Finds what a job is about to overwrite for the first time.

    is_lazy: False saves all that a block holds with the first job that writes there.
    """

    def __init__(self, sharing: Sharing, *, is_lazy: bool) -> None:
        self._sharing = sharing
        self._is_lazy = is_lazy

    def saves(
        self, kv: ModelKv, slots: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """Copies for a job after which left slots[i] holds ends[i] tokens, one entry a victim."""
        shared, sharing = kv.shared, self._sharing
        if not len(shared):
            return ()
        due, held = shared.due(slots, kv.num_held(ends))
        if len(due) == 0:
            return ()
        blocks = kv.columns.blocks[shared.columns[due]]
        is_shared = sharing.pool.owners[blocks] == BOTH
        entries = is_shared.nonzero()[0]
        safe = np.full(blocks.shape, kv.block_tokens, dtype=np.int32)
        blocks = blocks[is_shared]
        safe_ours = np.empty(len(blocks), dtype=np.int32)
        copies: list[SlotCopies] = []
        for victim, ours in sharing.by_model(blocks):
            mine = blocks[ours].astype(np.intp)  # once: numpy would convert at each use
            touched = self._touched(kv, victim, mine, held[entries[ours]])
            saved = self._save(victim, mine, touched, job_id)
            if len(saved):
                copies.append(SlotCopies(victim.model.name, saved, NO_RUNS, NO_RUNS))
            safe_ours[ours] = self._safe(kv, victim, mine)
        safe[is_shared] = safe_ours
        shared.narrow(due, np.minimum.reduce(safe, axis=1))
        return tuple(copies)

    def untaken(self, kv: ModelKv, slot: int) -> int:
        """Blocks that the sequence lent and no left one took."""
        return len(self._untaken(kv, slot)) if kv.lent.counts[slot] else 0

    def _untaken(self, kv: ModelKv, slot: int) -> NDArray[np.int32]:
        _, _, columns = lent_entries(kv, np.array([slot], dtype=np.int32))
        blocks = kv.columns.blocks[columns].ravel()
        blocks = blocks[blocks != NO_BLOCK]
        untaken: NDArray[np.int32] = blocks[self._sharing.pool.owners[blocks] == RIGHT]
        return untaken

    def swap_out(self, kv: ModelKv, slot: int, count: int, job_id: int) -> SlotCopies:
        """Save all that the last `count` untaken blocks of a lent sequence hold: they are free."""
        sharing, untaken = self._sharing, self._untaken(kv, slot)
        blocks = untaken[len(untaken) - count :]
        assert len(blocks) == count, "blocks are swapped out that nobody lent"
        sharing.lent.remove(blocks)
        sharing.raise_costs(blocks, 1)
        sharing.ledger.free_lent(count)
        ends = sharing.rights.ends[blocks].astype(np.int32)
        saved = self._save(kv, blocks.astype(np.intp), ends, job_id)
        return SlotCopies(kv.model.name, saved, NO_RUNS, NO_RUNS)

    def _touched(
        self, kv: ModelKv, victim: ModelKv, blocks: NDArray[np.intp], held: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """End of the places of `victim` that `blocks` lose to `held` > 0 tokens of theirs, [n].

        A full column takes all: it may be published, and must then have no right owner, even if
        it leaves some bytes at the end of the block. Of what an interactive sequence lent all is
        taken at once: its tokens are the first to be overwritten, and so who took the block can
        lend it in turn.
        """
        rights = self._sharing.rights
        places = -(-held * kv.slot_bytes // victim.slot_bytes)
        ends = rights.ends[blocks].astype(np.int32)
        takes_all = rights.is_left[blocks] | (held == kv.block_tokens) | (not self._is_lazy)
        return np.where(takes_all, ends, np.minimum(places, ends))

    def _safe(self, kv: ModelKv, victim: ModelKv, blocks: NDArray[np.intp]) -> NDArray[np.int32]:
        """Tokens of a left column over `blocks` that need no more saving, [n]; all where saved."""
        rights = self._sharing.rights
        saved = rights.saved[blocks].astype(np.int32)
        safe = saved  # where their blocks hold as many tokens
        if not self._is_lazy or victim.slot_bytes != kv.slot_bytes:
            most = kv.block_tokens - 1 if self._is_lazy else 0
            safe = np.minimum(saved * victim.slot_bytes // kv.slot_bytes, most)
        return np.where(saved == rights.ends[blocks], kv.block_tokens, safe)

    def _save(
        self, victim: ModelKv, blocks: NDArray[np.intp], touched: NDArray[np.int32], job_id: int
    ) -> Runs:
        """Copies of what `blocks` lose; who lent blocks that lose all owns them no longer."""
        sharing, rights = self._sharing, self._sharing.rights
        saved = rights.saved[blocks].astype(np.int32)
        needed = touched > saved
        num_needed = np.count_nonzero(needed)
        if num_needed == 0:
            return NO_RUNS
        if num_needed < len(blocks):
            blocks, touched, saved = blocks[needed], touched[needed], saved[needed]
        is_source = rights.is_source[blocks]
        assert not np.count_nonzero(is_source), "a running job restores what would be lost"
        cells = rights.cells[blocks]
        frames = victim.lent.frames.ravel()[cells]
        copies = runs(blocks, frames, victim.block_tokens, saved, touched)
        rights.saved[blocks] = touched
        gone = touched == rights.ends[blocks]
        if np.count_nonzero(gone):
            sharing.pool.drop(blocks[gone], RIGHT)
            victim.columns.blocks.ravel()[cells[gone]] = NO_BLOCK
        slots = victim.lent.slots[cells // victim.columns.blocks_per_column]
        self._note(victim, np.bincount(slots).nonzero()[0], frames, job_id)
        return copies

    def _note(
        self, victim: ModelKv, slots: NDArray[np.intp], frames: NDArray[np.int32], job_id: int
    ) -> None:
        job: JobCopies = self._sharing.jobs.of(job_id)
        self._sharing.frames.touch(frames)
        job.frames.append(frames)
        name = victim.model.name
        for slot in slots.tolist():
            if (name, slot) not in job.saved:
                job.saved.add((name, slot))
                victim.lent.num_saving[slot] += 1
