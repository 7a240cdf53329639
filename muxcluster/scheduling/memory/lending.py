"""Blocks of batch sequences as the reserve of the interactive class (BROS §5).

A batch sequence in no running job lends its last columns; interactive ones write over them from the
other end, and what they overwrite is saved to host memory just before. The batch sequence is
restored before it runs again. So an interactive request finds memory as if the unit were almost
empty, and no token is computed twice while host memory lasts. Where batch sequences have nothing
more to lend, the least urgent interactive ones lend in the same way.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter

import numpy as np

from muxcluster.core.job import Side, SlotCopies, TableDelta
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.state.model import ModelState

Restored = tuple[TableDelta, tuple[SlotCopies, ...]]  # new table entries, and the copies
_FIRST_TWO = itemgetter(0, 1)


class SequenceLending:
    """Chooses the sequences that lend, batch ones first."""

    def __init__(self, kv: KvCache, models: Sequence[ModelState], *, is_on: bool) -> None:
        self._kv = kv
        self._models = models
        self.is_on = is_on  # False where no sequence lends

    def covers(self, blocks: int) -> bool:
        """True where `lend` would lend so many blocks now, if host memory lasts."""
        return self.is_on and self._cover(self._lenders(), blocks)

    def _cover(self, lenders: Sequence[tuple[ModelState, int]], blocks: int) -> bool:
        for model, row in lenders:
            blocks -= model.kv.lendable(row)
            if blocks <= 0:
                return True
        return False

    def lend_to(self, model: ModelState, needed: int) -> bool:
        """Let batch sequences lend what interactive ones of `model` lack of `needed` blocks."""
        if not self.is_on or needed > model.kv.quota - model.kv.used:
            return False
        return self.lend(needed - model.kv.headroom(Side.LEFT))

    def lend(self, blocks: int) -> bool:
        """Make `blocks` more blocks available to interactive sequences; False: not as many.

        If False, fewer may have been lent, as host memory was short. Lent blocks cost nothing until
        they are taken.
        """
        lenders = self._lenders() if self.is_on else []
        if not self._cover(lenders, blocks):
            return False
        return self._collect(blocks, lenders)

    def lend_by_juniors(self, blocks: int, rank: int, only: ModelState | None = None) -> bool:
        """Make `blocks` more blocks available to the interactive sequence of seniority `rank`.

        Where `lend` is not enough, interactive sequences junior to it lend, too, those with most
        slack first. False: not as many. only: the model whose quota is short, so that only blocks
        of its own interactive sequences help.
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
        for model, row in lenders:
            blocks -= self.lend_from(model, row, blocks)
            if blocks <= 0:
                return True
        return False

    def lend_from(self, model: ModelState, row: int, blocks: int) -> int:
        """Let an idle sequence lend `blocks` or as many as it can; return the blocks lent."""
        table = model.running
        lent = model.kv.lend(row, int(table.num_computed[row]), blocks)
        model.counters.num_lent_columns += lent // model.blocks_per_column
        if lent:
            table.set_lent(row)
        return lent

    def has_running(self, rank: int, only: ModelState | None = None) -> bool:
        """True where a sequence may lend (more) when a running job has ended.

        That is the job that it is in or that saves what it lent. rank, only: as in
        `lend_by_juniors`.
        """
        models = self._models if only is None else [only]
        has_host_blocks = self._kv.free_host_blocks > 0
        for model in models:
            table = model.running
            is_junior = ~table.is_batch & (table.seniority > rank)
            if has_host_blocks and bool((is_junior & table.in_job).any()):
                return True
            if only is None and bool((table.is_batch & table.in_job).any()):
                return True
            if only is None and not all(map(model.kv.can_restore, table.idle_lent().tolist())):
                return True
        return False

    def _juniors(self, rank: int, models: Sequence[ModelState]) -> list[tuple[ModelState, int]]:
        """Return idle interactive sequences junior to `rank`: those that lend, then by slack."""
        candidates: list[tuple[bool, float, int, ModelState, int]] = []
        for model in models:
            table = model.running
            idle = table.idle()
            idle = idle[~table.is_batch[idle] & (table.seniority[idle] > rank)]
            for row in idle.tolist():
                key = not table.is_lent[row], -float(table.deadline_s[row])
                candidates.append((*key, -int(table.seniority[row]), model, row))
        candidates.sort(key=lambda each: each[:3])
        return [(model, row) for *_, model, row in candidates]

    def _lenders(self) -> list[tuple[ModelState, int]]:
        """Return idle batch sequences with columns to lend: those that lend, then juniors."""
        candidates: list[tuple[bool, int, ModelState, int]] = []
        for model in self._models:
            table, rows = model.running, model.running.idle_batch()
            if len(rows) == 0:
                continue
            lent = model.kv.num_lent[rows] * np.int32(model.block_tokens)
            rows = rows[model.kv.capacity[rows] > lent]
            is_whole, ranks = ~table.is_lent[rows], -table.seniority[rows]
            candidates += zip(is_whole.tolist(), ranks.tolist(), repeat(model), rows.tolist())
        candidates.sort(key=_FIRST_TWO)
        return [(model, row) for _, _, model, row in candidates]


def restore(model: ModelState, row: int, job_id: int) -> Restored | None:
    """Give a lent sequence all columns back, for the job; None where blocks are short."""
    rows = np.array([row], dtype=np.int32)
    restored = model.kv.restore(rows, job_id)
    if isinstance(restored, Shortage):
        return None
    model.running.set_whole(row)
    tables, copies = restored
    return tables, (copies,)
