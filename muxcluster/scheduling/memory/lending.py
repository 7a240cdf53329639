"""Blocks of batch sequences as the reserve of the interactive class (BROS §5).

A batch sequence in no running job lends its last columns; interactive ones write over them from the
other end, and what they overwrite is saved to host memory just before. The batch sequence is
restored before it runs again. So an interactive request finds memory as if the unit were almost
empty, and no token is computed twice while host memory lasts. Where batch sequences have nothing
more to lend, the least urgent interactive ones lend in the same way.

Why nothing livelocks. An interactive sequence lends only to a more senior one, and is restored only
when no more senior one lacks blocks: neither one that lent some, nor one without room for its next
token. What a restore needs beyond that comes from batch sequences and from its juniors. So the most
senior interactive sequence never lends; if it lent while another was more senior, it is the next to
be restored; and where it cannot be although nothing runs, others are preempted for it.

Where only batch work is here, a batch sequence that lacks blocks takes those of its juniors, the
least senior first. The job that needs them saves their tokens before it writes there, and they are
restored like any others that lent. Only where host memory is short, too, a junior is preempted.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side, SlotCopies, TableDelta
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.pool import Shortage
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows

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
            blocks -= model.kv.lending.lendable(row)
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
        lent = model.kv.lending.lend(row, int(table.num_computed[row]), blocks)
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
            if only is None and not all(
                map(model.kv.lending.can_restore, table.idle_lent().tolist())
            ):
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
            rows = rows[model.kv.holds(rows)]
            is_whole, ranks = ~table.is_lent[rows], -table.seniority[rows]
            candidates += zip(is_whole.tolist(), ranks.tolist(), repeat(model), rows.tolist())
        candidates.sort(key=_FIRST_TWO)
        return [(model, row) for _, _, model, row in candidates]


def restore(model: ModelState, row: int, job_id: int) -> Restored | None:
    """Give a lent sequence all columns back, for the job; None where blocks are short."""
    rows = np.array([row], dtype=np.int32)
    restored = model.kv.lending.restore(rows, job_id)
    if isinstance(restored, Shortage):
        return None
    model.running.set_whole(row)
    tables, copies = restored
    return tables, (copies,)


Preempt = Callable[[ModelState, int, float], None]
Grown = tuple[TableRows, TableDelta | None, tuple[SlotCopies, ...]]  # who goes on, entries, copies


def least_senior(
    models: Sequence[ModelState], *, is_left: bool = False, by_quota: bool = False
) -> tuple[ModelState, int]:
    """Return the least senior idle sequence of `models`; the one that lacks blocks is idle.

    is_left: blocks are for interactive sequences where batch ones lend. Then it is one whose end
    yields some: none that has lent all it had, and no batch sequence where the quota
    (by_quota), which binds interactive ones only, is short.
    """
    worst: tuple[int, ModelState, int] | None = None
    for model in models:
        if not is_left:
            idle = model.running.idle()
        else:
            idle = bound_idle(model, is_left=True) if by_quota else _with_blocks(model)
        if len(idle) == 0:
            continue
        ranks = model.running.seniority[idle]
        last = int(np.argmax(ranks))
        if worst is None or int(ranks[last]) > worst[0]:
            worst = int(ranks[last]), model, int(idle[last])
    assert worst is not None, "a sequence in a running job asks for blocks"
    return worst[1], worst[2]


def bound_idle(model: ModelState, *, is_left: bool) -> TableRows:
    """Return idle sequences whose end gives blocks back to the quota.

    None that has lent all it had: these blocks count no more. is_left: batch ones lend, and no
    quota binds them.
    """
    idle = _with_blocks(model)
    return idle[~model.running.is_batch[idle]] if is_left else idle


def _with_blocks(model: ModelState) -> TableRows:
    """Return the idle sequences that have not lent all they had."""
    idle = model.running.idle()
    return idle[model.kv.holds(idle)]


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
            return model.kv.lack(rest(), table.num_tokens[rest()])

        saves = self._make_room(model, first, lack, job_id, now)
        if saves is None:
            return rows[:0], None, ()
        stays = rest()
        grown = model.kv.grow(stays, table.num_tokens[stays])
        assert not isinstance(grown, Shortage), "room was made"
        return stays, grown, saves

    def restore(self, model: ModelState, row: int, job_id: int, now: float) -> Restored | None:
        """Restore a lent sequence with room for its next token; None where it has to wait."""
        table = model.running
        lacks = model.kv.capacity[row] < table.num_tokens[row]
        column = model.blocks_per_column if lacks else 0

        def lack() -> int:
            return model.kv.lending.restore_cost(row) + column

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
        lent = {(model.name, row): model.kv.lending.untaken(row) for model, row in juniors}
        total, missing = sum(lent.values()), short()
        for model, row in juniors:
            if missing <= total:
                return True
            if self._lending.lend_from(model, row, missing - total):
                total += model.kv.lending.untaken(row) - lent[model.name, row]
                missing = short()
        return missing <= total

    def _swap_out(self, rank: int, blocks: int, job_id: int) -> tuple[SlotCopies, ...]:
        copies: list[SlotCopies] = []
        for model, row in self._juniors(rank):
            if blocks <= 0:
                break
            count = min(blocks, model.kv.lending.untaken(row))
            if count:
                copies.append(model.kv.lending.swap_out(row, count, job_id))
                blocks -= count
        return tuple(copies)


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
        return row if is_next and model.kv.lending.can_restore(row) else None

    def _first_short(self, model: ModelState) -> int:
        """Return the seniority of the first idle interactive sequence that lacks blocks."""
        table = model.running
        is_short = model.kv.capacity < table.num_tokens
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
        while (short := model.kv.lending.restore_shortage(row, spare)) is not None:
            only = model if short.by_quota else None
            if not self._lending.lend_by_juniors(short.blocks, rank, only):
                return None
        return restore(model, row, job_id)

    def _next_column(self, model: ModelState, row: int) -> int:
        lacks = model.kv.capacity[row] < model.running.num_tokens[row]
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
        if not model.kv.lending.can_restore(row):
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
