"""Blocks of batch sequences as the reserve of the interactive class (BROS §5).

A batch sequence in no running job lends its last columns; interactive ones write over them from the
other end, and what they overwrite is saved to host memory just before. Before the batch sequence
runs again it is restored. So an interactive request finds memory as if the unit were almost empty,
and no token is computed twice while host memory lasts. Where batch sequences have nothing more to
give, the least urgent interactive ones lend in the same way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter

import numpy as np

from muxcluster.core.job import Job, Side, SlotCopies, TableDelta
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots

Restored = tuple[TableDelta, tuple[SlotCopies, ...]]
_FIRST_TWO = itemgetter(0, 1)


class Lending:
    """Who lends, and who gets its blocks back. is_on: False where nobody ever lends."""

    def __init__(self, kv: KvCache, models: Sequence[ModelState], *, is_on: bool) -> None:
        self._kv = kv
        self._models = models
        self.is_on = is_on

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody lends meanwhile."""
        was_on, self.is_on = self.is_on, False
        try:
            yield
        finally:
            self.is_on = was_on

    def covers(self, blocks: int) -> bool:
        """True where `lend` would lend so many blocks now, if host memory lasts."""
        return self.is_on and self._cover(self._lenders(), blocks)

    def _cover(self, lenders: Sequence[tuple[ModelState, int]], blocks: int) -> bool:
        for model, slot in lenders:
            blocks -= model.kv.lendable(slot)
            if blocks <= 0:
                return True
        return False

    def may_overwrite(self, model: ModelState) -> bool:
        """True where interactive sequences of `model` may lie over lent blocks."""
        return self.is_on and model.kv.lies_over_lent

    def lend_to(self, model: ModelState, needed: int) -> bool:
        """Let batch sequences lend what interactive ones of `model` lack of `needed` blocks."""
        if not self.is_on or needed > model.kv.quota - model.kv.used:
            return False
        return self.lend(needed - model.kv.headroom(Side.LEFT))

    def lend(self, blocks: int) -> bool:
        """Make `blocks` more blocks available to interactive sequences; False: not as many.

        Host memory may then be short. What was lent costs nothing until somebody takes it.
        """
        lenders = self._lenders() if self.is_on else []
        if not self._cover(lenders, blocks):
            return False
        return self._collect(blocks, lenders)

    def lend_by_juniors(self, blocks: int, rank: int, only: ModelState | None = None) -> bool:
        """`lend`, and where that is not enough interactive sequences of higher seniority number
        than `rank` lend, too, those with the most slack first; False: not as many.

        only: the model whose quota is short of blocks, so that only its own ones are of use.
        """
        if not self.is_on:
            return False
        if only is None and self.lend(blocks):
            return True
        juniors = self._juniors(rank, self._models if only is None else [only])
        if not juniors:
            return False
        lenders = juniors if only is not None else self._lenders() + juniors
        return self._collect(blocks, lenders)

    def _collect(self, blocks: int, lenders: Iterable[tuple[ModelState, int]]) -> bool:
        for model, slot in lenders:
            blocks -= self.lend_from(model, slot, blocks)
            if blocks <= 0:
                return True
        return False

    def lend_from(self, model: ModelState, slot: int, blocks: int) -> int:
        """Let an idle sequence lend `blocks` if it can; blocks lent."""
        table = model.slots
        lent = model.kv.lend(slot, int(table.num_computed[slot]), blocks)
        model.counters.num_lent_columns += lent // model.blocks_per_column
        if lent:
            table.set_lent(slot)
        return lent

    def has_running(self, rank: int, only: ModelState | None = None) -> bool:
        """True where a sequence may lend (more) when the job has ended that it is in, or that
        saves what it lent. rank, only: see `lend_by_juniors`.
        """
        models, has_frames = self._models if only is None else [only], self._kv.free_host_blocks > 0
        for model in models:
            table = model.slots
            is_junior = ~table.is_batch & (table.seniority > rank)
            if has_frames and bool((is_junior & table.in_job).any()):
                return True
            if only is None and bool((table.is_batch & table.in_job).any()):
                return True
            if only is None and not all(map(model.kv.can_restore, table.idle_lent().tolist())):
                return True
        return False

    def _juniors(self, rank: int, models: Sequence[ModelState]) -> list[tuple[ModelState, int]]:
        """Idle interactive sequences junior to `rank`: those that lend, then by slack."""
        candidates: list[tuple[bool, float, int, ModelState, int]] = []
        for model in models:
            table = model.slots
            idle = table.idle()
            idle = idle[~table.is_batch[idle] & (table.seniority[idle] > rank)]
            for slot in idle.tolist():
                key = not table.is_lent[slot], -float(table.deadline_s[slot])
                candidates.append((*key, -int(table.seniority[slot]), model, slot))
        candidates.sort(key=lambda each: each[:3])
        return [(model, slot) for *_, model, slot in candidates]

    def _lenders(self) -> list[tuple[ModelState, int]]:
        """Batch sequences in no running job that have columns to lend: those that lend already,
        then the least senior.
        """
        candidates: list[tuple[bool, int, ModelState, int]] = []
        for model in self._models:
            table, slots = model.slots, model.slots.idle_batch()
            if len(slots) == 0:
                continue
            lent = model.kv.num_lent[slots] * np.int32(model.block_tokens)
            slots = slots[model.kv.capacity[slots] > lent]
            is_whole, ranks = ~table.is_lent[slots], -table.seniority[slots]
            candidates += zip(is_whole.tolist(), ranks.tolist(), repeat(model), slots.tolist())
        candidates.sort(key=_FIRST_TWO)
        return [(model, slot) for _, _, model, slot in candidates]

    def returnable(self, model: ModelState) -> Slots:
        """Lent sequences whose columns can be restored now, cheapest first, then most senior."""
        table = model.slots
        lent = table.idle_lent()
        ready = [slot for slot in lent.tolist() if model.kv.can_restore(slot)]
        if not ready:
            return lent[:0]
        slots = np.array(ready, dtype=np.int32)
        costs = np.array([model.kv.restore_cost(slot) for slot in ready])
        return slots[np.lexsort((table.seniority[slots], costs))]

    def restore(self, model: ModelState, slot: int, job_id: int) -> Restored | None:
        """Give a lent sequence all columns back, for the job; None where blocks are short."""
        slots = np.array([slot], dtype=np.int32)
        restored = model.kv.restore(slots, job_id)
        if isinstance(restored, Shortage):
            return None
        model.slots.set_whole(slot)
        tables, copies = restored
        return tables, (copies,)

    def end_copies(
        self, job: Job, models: Mapping[str, ModelState], *, succeeded: bool
    ) -> Sequence[tuple[str, int]]:
        """The job ended; (model, slot) of sequences whose saved tokens it took along.

        Where it failed, whom it was to restore is lent again.
        """
        lost = self._kv.end_copies(job.job_id, succeeded=succeeded)
        if succeeded:
            for copies in job.copies:
                counters = models[copies.model].counters
                counters.num_saved_slots += int(copies.saves[:, 2].sum())
                counters.num_restored_slots += int(copies.restores[:, 2].sum())
            return lost
        model, slots = models[job.model], job.rows.slots
        for slot in slots[model.kv.num_lent[slots] > 0].tolist():
            model.slots.set_lent(slot)
        return lost
