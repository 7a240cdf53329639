"""Which tokens of lent blocks a job has to save before it overwrites them (BROS §5, lazily)."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SlotCopies
from muxcluster.kvcache.lending.blocks import NO_RUNS
from muxcluster.kvcache.lending.columns import NO_BLOCK
from muxcluster.kvcache.lending.state import LentState
from muxcluster.kvcache.model_kv import ModelKv

_NO_BLOCKS = np.empty(0, dtype=np.int32)


class Saving:
    """Finds what a job of one model is about to overwrite for the first time."""

    def __init__(self, state: LentState, kv: ModelKv, *, is_lazy: bool) -> None:
        """is_lazy: False saves all that a block holds with the first job that writes there."""
        self._state = state
        self._kv = kv
        self._is_lazy = is_lazy

    def saves(
        self, rows: NDArray[np.int32], ends: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """Save for a job after which left rows[i] holds ends[i] tokens; copies of each victim."""
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

    def untaken(self, row: int) -> NDArray[np.int32]:
        """Return the blocks that a sequence lent and no left one took, int32 [n]."""
        kv = self._kv
        if not kv.lent.counts[row]:
            return _NO_BLOCKS
        _, _, columns = kv.lent_entries(np.array([row], dtype=np.int32))
        blocks = kv.columns.blocks[columns].ravel()
        return self._state.untaken(blocks[blocks != NO_BLOCK])

    def swap_out(self, row: int, count: int, job_id: int) -> SlotCopies:
        """Save and free the last `count` untaken blocks of a lent sequence."""
        untaken = self.untaken(row)
        blocks = untaken[len(untaken) - count :]
        assert len(blocks) == count, "blocks are swapped out that are not lent"
        saved = self._state.save_and_free(self._kv, blocks, job_id)
        return SlotCopies(self._kv.model.name, saved, NO_RUNS, NO_RUNS)

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
        takes_all = lenders.is_left[blocks] | (held == self._kv.block_tokens) | (not self._is_lazy)
        return np.where(takes_all, ends, np.minimum(places, ends))

    def _safe(self, victim: ModelKv, blocks: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the tokens of left columns over `blocks` that need no more saving, [n]."""
        kv, lenders = self._kv, self._state.lenders
        saved = lenders.saved[blocks].astype(np.int32)
        safe = saved  # where their blocks hold as many tokens
        if not self._is_lazy or victim.slot_bytes != kv.slot_bytes:
            most = kv.block_tokens - 1 if self._is_lazy else 0
            safe = np.minimum(saved * victim.slot_bytes // kv.slot_bytes, most)
        return np.where(saved == lenders.ends[blocks], kv.block_tokens, safe)
