"""Which requests hold KV: admission, growth, preemption by recompute and release.

Why nothing deadlocks or livelocks. A request is accepted only if its model's floor can carry it
alone. Where quotas are in force they sum to at most the pool, no model uses more than its quota,
and every quota is at least the floor; without quotas the pool itself is the floor. A victim is
always the least senior idle sequence among those whose blocks would help (of the same model when
the quota lacks blocks, of any when the pool does), so the most senior one is never preempted and
finds, at the latest when the running jobs end, every other sequence preemptible: it progresses,
ends, and the next becomes the most senior. A sequence that is alone in its job and least senior
stalls instead of preempting itself. Where weights move, a model that woke has less than its floor
until others, which go on within theirs, have given blocks back: see `Adaptation.settle`. Where
sequences lend, see lending.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Event, Preempted
from muxcluster.core.job import Job, Side, SlotCopies, TableDelta
from muxcluster.core.request import ServiceClass
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.pool import Shortage
from muxcluster.scheduling.memory.lending import (
    Grown,
    Restored,
    SequenceLending,
    SequenceRestoring,
    Swapping,
    bound_idle,
    least_senior,
    restore,
)
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import TableRows


class Memory:
    """The scheduler's side of the KV cache: all that packings ask of memory."""

    def __init__(
        self,
        kv: KvCache,
        models: Sequence[ModelState],
        block_bytes: int,
        *,
        is_bidirectional: bool = False,
    ) -> None:
        """is_bidirectional: sequences lend their blocks to interactive ones."""
        self._kv = kv
        self.models = models
        self._block_bytes = block_bytes
        self._lending = SequenceLending(kv, models, is_on=is_bidirectional)
        self._swapping = Swapping(models, self._lending, self._preempt)
        self._restoring = SequenceRestoring(models, self._lending, self._swapping, self._preempt)
        self._events: list[Event] = []

    @property
    def pool_use(self) -> float:
        """Share of the pool's blocks that live sequences hold."""
        kv = self._kv
        return 1.0 - (kv.free + kv.evictable) / kv.num_blocks

    @property
    def has_preempted(self) -> bool:
        """True where `take_events` would return some."""
        return len(self._events) > 0

    def take_events(self) -> tuple[Event, ...]:
        """Return the preemptions since the last call, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    # Admission

    def admit(self, model: ModelState, live: LiveRequest) -> bool:
        """Move a waiting request into a row with blocks for its first tokens; False: not now.

        Those are all that are known, but for `ModelState.first_tokens`.
        """
        cached = self._open(model, live)
        if cached is None:
            return False
        row = model.running.occupy(live, cached, model.max_total(live.request))
        model.places.take(row, _placed_adapter(live))
        model.waiting.remove(live)
        model.admit_turn(live)
        rows = np.array([row], dtype=np.int32)
        first = model.first_tokens(live.num_tokens, cached)
        grown = model.kv.grow(rows, np.array([first], dtype=np.int32))
        assert not isinstance(grown, Shortage), "headroom promised blocks that are not there"
        return True

    def fits(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` would succeed now."""
        if self._open(model, live) is None:
            return False
        model.kv.close(model.running.next_free)
        return True

    def has_room(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` would succeed now without the help of a cached prefix."""
        blocks = model.blocks(model.first_tokens(live.num_tokens, 0))
        spare = self._headroom(model, live.side) - blocks
        if spare < 0 or not _has_row(model, live):
            return False
        return self._reserve(model, live.side) <= spare

    def may_admit(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` could succeed now, also by lending; no prefix is looked up."""
        if self.has_room(model, live):
            return True
        if live.side is not Side.LEFT or not _has_row(model, live):
            return False
        needed = model.blocks(model.first_tokens(live.num_tokens, 0))
        needed += self._reserve(model, live.side)
        if needed > model.kv.quota - model.kv.used:
            return False
        return self._lending.covers(needed - model.kv.headroom(Side.LEFT))

    def _open(self, model: ModelState, live: LiveRequest) -> int | None:
        """Attach the cached prefix on the next free row; return its tokens, None: no room."""
        if not _has_row(model, live):
            return None
        row, num_tokens = model.running.next_free, live.num_tokens
        hashes: list[bytes] = []
        if model.uses_prefixes(live):
            # At least one token must be left to compute, or there would be no logits.
            columns = (num_tokens - 1) // model.block_tokens
            hashes = live.extend_hashes(model.spec, live.output, columns, model.block_tokens)
            if _waits_for_sibling(model, live):
                return None
        if not model.kv.finds(hashes):
            # Nothing to attach, so nothing to undo where there is no room: a request that waits
            # for blocks is tried at every step.
            has_room = self._makes_room(model, live, 0)
            return model.kv.open(row, (), live.side) if has_room else None
        cached = model.kv.open(row, hashes, live.side)
        if self._makes_room(model, live, cached):
            return cached
        model.kv.close(row)
        return None

    def _makes_room(self, model: ModelState, live: LiveRequest, cached: int) -> bool:
        """True where there are blocks for all but `cached` tokens, lent for it if need be."""
        side = live.side
        first = model.first_tokens(live.num_tokens, cached)
        needed = model.blocks(first) - model.blocks(cached) + self._reserve(model, side)
        if needed <= self._headroom(model, side):
            return True
        if side is Side.LEFT and self._lending.lend_to(model, needed):
            return True
        model.is_short = True
        return False

    def _headroom(self, model: ModelState, side: Side) -> int:
        """Return the blocks that a request of that side may take to be admitted."""
        kv, pinned = self._kv, self._pinned(side)
        headroom = model.kv.headroom(side)
        return min(headroom, kv.free + kv.evictable - pinned) if pinned else headroom

    def _reserve(self, model: ModelState, side: Side) -> int:
        """Return one column for each sequence that may still grow; it keeps `side` out."""
        # Without it, admission and preemption would take turns at the same blocks.
        table = model.running
        may_grow = model.kv.capacity < table.most_computed
        if side is Side.LEFT and self._lending.is_on:
            may_grow = may_grow > table.is_batch
        return int(np.count_nonzero(may_grow)) * model.blocks_per_column

    def _pinned(self, side: Side) -> int:
        """Return idle pinned blocks, at most half the pool, which batch requests are kept from."""
        # None while an interactive request waits, maybe behind a batch one, nor where no batch
        # sequence is left whose end could make room: pins then give way, as they do to any growth.
        kv, models = self._kv, self.models
        blocks = min(kv.pins.idle_blocks, kv.num_blocks // 2)
        if side is Side.LEFT or not blocks or not any(model.running.num_batch for model in models):
            return 0
        interactive = (model.waiting.by_class[ServiceClass.INTERACTIVE] for model in models)
        return 0 if any(queue.head is not None for queue in interactive) else blocks

    # Growth

    def has_column(self, model: ModelState) -> bool:
        """True where a column of `model` is there without preemption."""
        return model.blocks_per_column <= model.kv.headroom()

    def try_grow(
        self, model: ModelState, rows: TableRows, num_tokens: NDArray[np.int32]
    ) -> TableDelta | None:
        """Make room for num_tokens[i] tokens in rows[i] without preemption; None: not now."""
        grown = model.kv.grow(rows, num_tokens)
        return None if isinstance(grown, Shortage) else grown

    def grow_ahead(
        self, model: ModelState, rows: TableRows, num_tokens: NDArray[np.int32]
    ) -> TableDelta | None:
        """Make room for num_tokens[i] tokens in rows[i], not all of which may come; None: not now.

        Nobody is preempted or lends for it, and a column stays for each sequence that may grow.
        """
        needed = model.kv.lack(rows, num_tokens)
        if needed:
            reserved = sum(self._reserve(each, Side.RIGHT) for each in self.models)
            if needed + reserved > self._kv.free + self._kv.evictable:
                return None
        return self.try_grow(model, rows, num_tokens)

    def grow_free(self, model: ModelState, rows: TableRows) -> tuple[TableRows, TableDelta | None]:
        """Make room for the next token of `rows` (idle, batch), or of the first of them.

        Nobody is preempted.
        """
        lengths = model.running.num_tokens[rows]
        grown = model.kv.grow(rows, lengths)
        if not isinstance(grown, Shortage):
            return rows, grown
        num_columns = model.kv.headroom(Side.RIGHT) // model.blocks_per_column
        lacks = model.kv.capacity[rows] < lengths
        stays = ~lacks | (lacks.cumsum() <= num_columns)
        rows, lengths = rows[stays], lengths[stays]
        return rows, self.try_grow(model, rows, lengths)

    def grow(
        self, model: ModelState, rows: TableRows, num_tokens: NDArray[np.int32], now: float
    ) -> tuple[TableRows, TableDelta | None]:
        """Make room for num_tokens[i] tokens in rows[i] (idle), preempting where need be.

        Sequences lend to interactive ones first; `rows` are of one class where they can.

        Returns the rows left (some of `rows` may be preempted) and their new table entries;
        no rows and None where even the most senior has to wait for a running job.
        """
        while True:
            grown = model.kv.grow(rows, num_tokens)
            if not isinstance(grown, Shortage):
                return rows, grown
            model.is_short = True
            is_left = self._lending.is_on and not model.running.is_batch[rows[0]]
            if is_left:
                stays = self._borrow(model, rows, num_tokens, grown)
                if stays is not None:
                    rows, num_tokens = rows[stays], num_tokens[stays]
                    continue
            among = [model] if grown.by_quota else self.models
            loser, victim = least_senior(among, is_left=is_left, by_quota=grown.by_quota)
            stays = rows != victim if loser is model else np.ones(len(rows), dtype=np.bool_)
            if not stays.any():
                return rows[:0], None
            self._preempt(loser, victim, now)
            rows, num_tokens = rows[stays], num_tokens[stays]

    def _borrow(
        self, model: ModelState, rows: TableRows, num_tokens: NDArray[np.int32], short: Shortage
    ) -> NDArray[np.bool_] | None:
        """Let others lend what is `short`; return which `rows` go on, None if nothing helps."""
        # Those that lend do not go on. Where that is not enough, nor does the least senior that
        # needs blocks: it lends to more senior ones, and waits for these and for juniors that run.
        lacks = model.kv.capacity[rows] < num_tokens
        ranks = np.where(lacks, model.running.seniority[rows], np.iinfo(np.int64).min)
        last, only = int(np.argmax(ranks)), model if short.by_quota else None
        has_lent = self._lending.lend_by_juniors(short.blocks, int(ranks[last]), only)
        stays: NDArray[np.bool_] = ~model.running.is_lent[rows]
        if has_lent:
            return stays
        has_senior = bool((model.running.seniority[rows] < ranks[last]).any())
        if has_senior or self._lending.has_running(int(ranks[last]), only):
            stays[last] = False
        return None if stays.all() else stays

    def grow_by_force(self, model: ModelState, rows: TableRows, job_id: int, now: float) -> Grown:
        """Make room for batch `rows` where nothing else runs: see `Swapping.grow`."""
        return self._swapping.grow(model, rows, job_id, now)

    @property
    def is_stuck(self) -> bool:
        """True where only batch sequences are here and none is in a job: no block comes free."""
        return self._swapping.is_stuck

    @property
    def has_interactive(self) -> bool:
        """True where an interactive request waits or runs."""
        return any(
            model.waiting.by_class[ServiceClass.INTERACTIVE].head is not None
            or model.running.num_live > model.running.num_batch
            for model in self.models
        )

    # Lending and restoring

    @property
    def lends(self) -> bool:
        """True where sequences lend blocks to interactive ones."""
        return self._lending.is_on

    @contextmanager
    def without_lending(self) -> Iterator[None]:
        """Let no sequence lend meanwhile."""
        was_on, self._lending.is_on = self._lending.is_on, False
        try:
            yield
        finally:
            self._lending.is_on = was_on

    def may_overwrite(self, model: ModelState) -> bool:
        """True where interactive sequences of `model` may lie over lent blocks."""
        return self._lending.is_on and model.kv.lending.lies_over_lent

    def saves(
        self, model: ModelState, rows: TableRows, counts: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """Return how a job saves what the next counts[i] tokens of rows[i] overwrite."""
        return model.kv.lending.saves(rows, model.running.num_computed[rows] + counts, job_id)

    def unblocked(self, model: ModelState, rows: TableRows) -> TableRows:
        """Return those of `rows` that no running job keeps out, as it restores from below."""
        blocked = model.kv.lending.blocked()
        return rows if blocked is None else rows[~blocked[rows]]

    def restorable(self, model: ModelState) -> TableRows:
        """Return lent sequences that can be restored now, cheapest first, then most senior."""
        table = model.running
        lent = table.idle_lent()
        ready = [row for row in lent.tolist() if model.kv.lending.can_restore(row)]
        if not ready:
            return lent[:0]
        rows = np.array(ready, dtype=np.int32)
        costs = np.array([model.kv.lending.restore_cost(row) for row in ready])
        return rows[np.lexsort((table.seniority[rows], costs))]

    @property
    def owes_interactive(self) -> bool:
        """True where an interactive sequence of some model has lent blocks."""
        tables = [model.running for model in self.models if model.running.num_lent]
        return any(not table.is_batch[table.idle_lent()].all() for table in tables)

    def next_interactive(self, model: ModelState) -> int | None:
        """Return the lent interactive sequence to restore now: see `SequenceRestoring`."""
        return self._restoring.next_interactive(model)

    def has_column_for(self, model: ModelState, row: int) -> bool:
        """True where a lent batch sequence could be restored and decode its next token."""
        needed = model.kv.lending.restore_cost(row) + model.blocks_per_column
        return needed <= model.kv.headroom(Side.RIGHT)

    def has_spare(self, model: ModelState, row: int) -> bool:
        """True where a lent batch sequence could be restored and all could grow by a column."""
        needed = model.kv.lending.restore_cost(row) + self._reserve(model, Side.RIGHT)
        return needed <= model.kv.headroom(Side.RIGHT)

    def lent_bytes(self, model: ModelState, row: int) -> int:
        """Return the bytes that restoring a lent sequence copies, at most."""
        return int(model.kv.num_lent[row]) * model.blocks_per_column * self._block_bytes

    def restore(self, model: ModelState, row: int, job_id: int) -> Restored | None:
        """Restore a lent sequence with a job; None where blocks are short."""
        return restore(model, row, job_id)

    def restore_interactive(self, model: ModelState, row: int, job_id: int) -> Restored | None:
        """Restore it with room for its next token; others may lend what is missing."""
        return self._restoring.restore_interactive(model, row, job_id)

    def restore_by_force(
        self, model: ModelState, row: int, job_id: int, now: float
    ) -> Restored | None:
        """Restore a lent sequence where nothing else can run, preempting others."""
        return self._restoring.restore_by_force(model, row, job_id, now)

    def end_copies(self, job: Job, now: float, *, succeeded: bool) -> None:
        """End the copies of a job.

        If it failed, what it restored is lent again, and what it saved is recomputed: some of it
        may be lost.
        """
        if not job.copies:
            return
        models = {model.name: model for model in self.models}
        lost = self._kv.end_copies(job.job_id, succeeded=succeeded)
        if succeeded:
            for copies in job.copies:
                counters = models[copies.model].counters
                counters.num_saved_slots += int(copies.saves[:, 2].sum())
                counters.num_restored_slots += int(copies.restores[:, 2].sum())
            return
        model, rows = models[job.model], job.rows.table_rows
        for row in rows[model.kv.num_lent[rows] > 0].tolist():
            model.running.set_lent(row)
        for name, row in lost:
            model = models[name]
            model.counters.num_recomputed_tokens += int(model.running.num_computed[row])
            self.requeue(model, row, now, is_trusted=False)

    # Release

    def give_back(self, model: ModelState, rows: TableRows) -> None:
        """Free blocks that no later token of `rows` sees; a job that computed them has ended.

        Those that have prompt left to compute get blocks for more of it in their place. A job of
        `rows` that runs already begins where that one ended.
        """
        if not model.kv.has_windows:
            return
        table = model.running
        rows = rows[table.is_live[rows]]
        slides = model.slides(rows)
        for row in rows[slides].tolist():
            model.kv.slide(row, int(table.num_computed[row]), int(table.num_tokens[row]))
        rows = rows[~slides]
        model.kv.give_back(rows, table.num_computed[rows])

    def _preempt(self, model: ModelState, row: int, now: float) -> None:
        model.counters.num_recomputed_tokens += int(model.running.num_computed[row])
        live = self.requeue(model, row, now, is_trusted=True)
        live.num_preemptions += 1
        model.counters.num_preemptions += 1
        self._events.append(Preempted(live.request.request_id))

    def give_up(self, model: ModelState, now: float) -> None:
        """Preempt every sequence of a model whose weights leave; none is in a job.

        Their full columns stay in the prefix cache.
        """
        for row in model.running.idle().tolist():
            self._preempt(model, row, now)

    def take_back(self, models: Sequence[ModelState], now: float) -> bool:
        """Preempt the least senior idle sequence of `models` that their quotas bind; False: none
        is idle."""
        is_left = self._lending.is_on
        idle = [model for model in models if len(bound_idle(model, is_left=is_left))]
        if not idle:
            return False
        loser, row = least_senior(idle, is_left=is_left, by_quota=True)
        self._preempt(loser, row, now)
        return True

    def requeue(self, model: ModelState, row: int, now: float, *, is_trusted: bool) -> LiveRequest:
        """Take a sequence's blocks and row; it waits at its old place and will recompute."""
        live = self.release(model, row, is_trusted=is_trusted)
        live.account.set_back(now, keeps_memory=False)
        live.go_first()
        model.waiting.push(live)
        return live

    def release(
        self, model: ModelState, row: int, *, is_trusted: bool, is_written: bool = False
    ) -> LiveRequest:
        """Take a sequence's blocks and row.

        is_trusted: its computed columns may be published. is_written: a running job still writes
        there, so nothing is free until `end_writes`.
        """
        if is_trusted and not model.running.is_lent[row]:
            self.publish(model, row)
        if not is_written:
            model.kv.close(row)
            model.places.leave(row)
        return model.running.vacate(row, is_written=is_written)

    def end_writes(self, model: ModelState, row: int) -> None:
        """Free the row of an ended sequence: the job that wrote there ran, or never will."""
        model.kv.close(row)
        model.places.leave(row)
        model.running.end_writes(row)

    def publish(self, model: ModelState, row: int) -> None:
        """Commit the columns of `row` that became full since the last time.

        Called when a prefill chunk ends and on release: output of a running sequence is of no
        use to others before that, and a decode step stays free of hashing.
        """
        table = model.running
        live = table.at(row)
        if not model.uses_prefixes(live):
            return
        known = min(int(table.num_computed[row]), int(table.num_tokens[row]))
        end = known // model.block_tokens
        start = int(model.kv.num_committed[row]) // model.block_tokens
        if end > start:
            output = table.output(row)
            hashes = live.extend_hashes(model.spec, output, end, model.block_tokens)
            only = np.array([row], dtype=np.int32)
            model.kv.commit(row, hashes[start:], is_private=bool(model.slides(only)[0]))


def _placed_adapter(live: LiveRequest) -> str:
    """Return the adapter that needs a place, empty for none."""
    return live.request.adapter if live.request.adapter_path else ""


def _has_row(model: ModelState, live: LiveRequest) -> bool:
    """True where there are a row for the sequence and a place for its adapter."""
    return model.running.has_row(live.side) and model.places.has_room(_placed_adapter(live))


def _waits_for_sibling(model: ModelState, live: LiveRequest) -> bool:
    """True where a sequence in its prefill computes a block next that a batch one needs, too."""
    # The hashes of `live` are known. Planned jobs start requests that share a prefix one after the
    # other, so most are in the queue while the first of them is in its prefill, and its columns can
    # be found only when that job has ended. Interactive requests do not wait; sequences that may
    # not run for now (they lent blocks, or are suspects) are not waited for.
    table = model.running
    if live.side is not Side.RIGHT or not table.num_prefilling:
        return False
    computing = table.is_live & table.is_prefilling & ~table.is_lent & ~table.is_suspect
    for row in np.flatnonzero(computing).tolist():
        column = int(table.num_computed[row]) // model.block_tokens
        theirs = table.at(row).hashes
        if column < min(len(theirs), len(live.hashes)) and theirs[column] == live.hashes[column]:
            return True
    return False
