"""When sequences that lent blocks are restored, and which others give way for it.

Why nothing livelocks. An interactive sequence lends only to a more senior one, and is restored only
when no more senior one lacks blocks: neither one that lent some, nor one without room for its next
token. What a restore needs beyond that comes from batch sequences and from its juniors. So the most
senior interactive sequence never lends; if it lent while another was more senior, it is the next to
be restored; and where it cannot be although nothing runs, others are preempted for it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.memory.lending import Restored, SequenceLending, restore
from muxcluster.scheduling.memory.swapping import Preempt, Swapping, least_senior
from muxcluster.scheduling.state.model import ModelState


class SequenceRestoring:
    """Restores lent sequences of both classes."""

    def __init__(
        self,
        models: Sequence[ModelState],
        lending: SequenceLending,
        swapping: Swapping,
        preempt: Preempt,
    ) -> None:
        self._models = models
        self._lending = lending
        self._swapping = swapping
        self._preempt = preempt

    def next_interactive(self, model: ModelState) -> int | None:
        """Return the lent interactive sequence of `model` to restore now, None for none."""
        table = model.running
        if not table.num_lent:
            return None
        lent = table.idle_lent()
        lent = lent[~table.is_batch[lent]]
        if len(lent) == 0:
            return None
        row = int(table.by_seniority(lent)[0])
        is_next = all(self._first_short(each) >= table.seniority[row] for each in self._models)
        return row if is_next and model.kv.can_restore(row) else None

    def _first_short(self, model: ModelState) -> int:
        """Return the seniority of the first idle interactive sequence that lacks blocks."""
        table = model.running
        is_short = model.kv.capacity < table.num_computed + 1
        is_short &= ~table.is_prefilling
        is_short |= table.is_lent
        is_short &= table.is_live & ~table.is_batch & ~table.in_job
        return int(table.seniority[is_short].min(initial=np.iinfo(np.int64).max))

    def restore_interactive(
        self, model: ModelState, row: int, job_id: int, *, has_reserve: bool = True
    ) -> Restored | None:
        """Restore it with room for its next token; None where blocks are short.

        Batch sequences and its juniors lend what is missing. has_reserve: keep a column for each
        more senior one, which would otherwise let it lend again at once.
        """
        rank = int(model.running.seniority[row])
        spare = self._next_column(model, row)
        if has_reserve:
            spare += sum(self._reserve(each, rank) for each in self._models)
        while (short := model.kv.restore_shortage(row, spare)) is not None:
            only = model if short.by_quota else None
            if not self._lending.lend_by_juniors(short.blocks, rank, only):
                return None
        return restore(model, row, job_id)

    def _next_column(self, model: ModelState, row: int) -> int:
        lacks = model.kv.capacity[row] < model.running.num_computed[row] + 1
        return model.blocks_per_column if lacks else 0

    def _reserve(self, model: ModelState, rank: int) -> int:
        """Return a column for each interactive sequence more senior than `rank`, in blocks."""
        table = model.running
        may_grow: NDArray[np.bool_] = model.kv.capacity < table.max_total - 1
        may_grow = may_grow & table.is_live & ~table.is_batch & (table.seniority < rank)
        return int(np.count_nonzero(may_grow)) * model.blocks_per_column

    def _is_running(self) -> bool:
        return any(bool(model.running.in_job.any()) for model in self._models)

    def restore_by_force(
        self, model: ModelState, row: int, job_id: int, now: float
    ) -> Restored | None:
        """Restore a lent sequence, preempting others; None where it must wait.

        Call it where nothing else can run: only batch sequences are here, or it is the most senior.
        """
        table = model.running
        if not model.kv.can_restore(row):
            return None
        if table.is_batch[row]:
            is_stuck = self._swapping.is_stuck
            return self._swapping.restore(model, row, job_id, now) if is_stuck else None
        firsts = [self._first_interactive(each) for each in self._models]
        if self._is_running() or table.seniority[row] > min(firsts):
            return None
        while True:
            restored = self.restore_interactive(model, row, job_id, has_reserve=False)
            if restored is not None or not self._give_way(model, row, now):
                return restored

    def _give_way(self, model: ModelState, row: int, now: float) -> bool:
        """Preempt the least senior sequence; False where that is the one to be restored."""
        loser, victim = least_senior(self._models)
        if loser is model and victim == row:
            return False
        self._preempt(loser, victim, now)
        return True

    def _first_interactive(self, model: ModelState) -> int:
        table = model.running
        ranks = table.seniority[table.is_live & ~table.is_batch]
        return int(ranks.min(initial=np.iinfo(np.int64).max))
