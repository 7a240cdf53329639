"""Which sequences give up blocks where none come free: by swapping, else by preemption.

Where only batch work is here, a batch sequence that lacks blocks takes those of its juniors, the
least senior first. The job that needs them saves their tokens before it writes there, and they are
restored like any others that lent. Only where host memory is short, too, a junior is preempted.
"""

from collections.abc import Callable, Sequence

import numpy as np

from muxcluster.core.job import Side, SlotCopies, TableDelta
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.memory.lending import Restored, SequenceLending, restore
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows

Preempt = Callable[[ModelState, int, float], None]
Grown = tuple[TableRows, TableDelta | None, tuple[SlotCopies, ...]]  # who goes on, entries, copies


def least_senior(
    models: Sequence[ModelState], *, is_left: bool = False, by_quota: bool = False
) -> tuple[ModelState, int]:
    """Return the least senior idle sequence of `models`; the one that lacks blocks is idle.

    is_left: blocks are for interactive sequences where batch ones lend. Then it is one whose end
    yields some: no batch sequence that has lent all it had, and none at all where the quota
    (by_quota), which binds interactive ones only, is short.
    """
    worst: tuple[int, ModelState, int] | None = None
    for model in models:
        idle = _useful(model, by_quota=by_quota) if is_left else model.running.idle()
        if len(idle) == 0:
            continue
        ranks = model.running.seniority[idle]
        last = int(np.argmax(ranks))
        if worst is None or int(ranks[last]) > worst[0]:
            worst = int(ranks[last]), model, int(idle[last])
    assert worst is not None, "a sequence in a running job asks for blocks"
    return worst[1], worst[2]


def _useful(model: ModelState, *, by_quota: bool) -> TableRows:
    table = model.running
    idle = table.idle()
    if by_quota:
        return idle[~table.is_batch[idle]]
    lent_tokens = model.kv.num_lent[idle] * np.int32(model.block_tokens)
    return idle[~table.is_batch[idle] | (model.kv.capacity[idle] > lent_tokens)]


class Swapping:
    """Makes room by force where no sequence can go on, so that no job runs (`is_stuck`).

    All blocks that come free belong to the job that asks: no other may write there before it has
    saved them.
    """

    def __init__(
        self, models: Sequence[ModelState], lending: SequenceLending, preempt: Preempt
    ) -> None:
        self._models = models
        self._lending = lending
        self._preempt = preempt

    @property
    def is_stuck(self) -> bool:
        """True where only batch sequences are here and none is in a job: no block comes free."""
        return all(
            model.running.num_live == model.running.num_batch and not model.running.in_job.any()
            for model in self._models
        )

    def grow(self, model: ModelState, rows: TableRows, job_id: int, now: float) -> Grown:
        """Make room for the next token of whole `rows`; juniors among them may give way."""
        table = model.running
        first = int(table.by_seniority(rows)[0])

        def rest() -> TableRows:
            return rows[table.is_live[rows] & ~table.is_lent[rows]]

        def lack() -> int:
            return model.kv.lack(rest(), table.num_computed[rest()] + 1)

        saves = self._make_room(model, first, lack, job_id, now)
        if saves is None:
            return rows[:0], None, ()
        stays = rest()
        grown = model.kv.grow(stays, table.num_computed[stays] + 1)
        assert not isinstance(grown, Shortage), "room was made"
        return stays, grown, saves

    def restore(self, model: ModelState, row: int, job_id: int, now: float) -> Restored | None:
        """Restore a lent sequence with room for its next token; None where it has to wait."""
        table = model.running
        lacks = model.kv.capacity[row] < table.num_computed[row] + 1
        column = model.blocks_per_column if lacks else 0

        def lack() -> int:
            return model.kv.restore_cost(row) + column

        saves = self._make_room(model, row, lack, job_id, now)
        if saves is None:
            return None
        restored = restore(model, row, job_id)
        assert restored is not None, "room was made"
        tables, copies = restored
        return tables, (*saves, *copies)

    def _make_room(
        self, model: ModelState, row: int, lack: Callable[[], int], job_id: int, now: float
    ) -> tuple[SlotCopies, ...] | None:
        """Make room for `lack()` blocks; return what the job saves, None: `row` has to wait."""
        rank = int(model.running.seniority[row])

        def short() -> int:
            return lack() - model.kv.headroom(Side.RIGHT)

        while not self._lend(rank, short):
            juniors = self._juniors(rank)
            if not juniors:
                return None
            self._preempt(*juniors[0], now)
        return self._swap_out(rank, short(), job_id)

    def _juniors(self, rank: int) -> list[tuple[ModelState, int]]:
        """Return idle batch sequences junior to `rank`, the least senior first."""
        ranked: list[tuple[int, ModelState, int]] = []
        for model in self._models:
            rows = model.running.idle_batch()
            ranks = model.running.seniority[rows]
            ranked += [
                (seniority, model, row)
                for seniority, row in zip(ranks.tolist(), rows.tolist(), strict=True)
                if seniority > rank
            ]
        ranked.sort(key=lambda each: -each[0])
        return [(model, row) for _, model, row in ranked]

    def _lend(self, rank: int, short: Callable[[], int]) -> bool:
        """Let juniors lend until that covers what is `short()`; False: it does not."""
        juniors = self._juniors(rank)
        lent = {(model.name, row): model.kv.untaken(row) for model, row in juniors}
        total, missing = sum(lent.values()), short()
        for model, row in juniors:
            if missing <= total:
                return True
            if self._lending.lend_from(model, row, missing - total):
                total += model.kv.untaken(row) - lent[model.name, row]
                missing = short()
        return missing <= total

    def _swap_out(self, rank: int, blocks: int, job_id: int) -> tuple[SlotCopies, ...]:
        copies: list[SlotCopies] = []
        for model, row in self._juniors(rank):
            if blocks <= 0:
                break
            count = min(blocks, model.kv.untaken(row))
            if count:
                copies.append(model.kv.swap_out(row, count, job_id))
                blocks -= count
        return tuple(copies)
