"""Which requests hold KV: admission, growth, preemption by recompute and release.

Why nothing deadlocks or livelocks. A request is accepted only if its model's floor can carry it
alone. Where quotas are in force they sum to at most the pool, no model uses more than its quota,
and every quota is at least the floor; without quotas the pool itself is the floor. A victim is
always the least senior idle sequence among those whose blocks would help (of the same model when
the quota lacks blocks, of any when the pool does), so the most senior one is never preempted and
finds, at the latest when the running jobs end, every other sequence preemptible: it progresses,
ends, and the next becomes the most senior. A sequence that is alone in its job and least senior
stalls instead of preempting itself. Where sequences lend, see returning.py and swapping.py.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Event, Preempted
from muxcluster.core.job import Job, Side, SlotCopies, TableDelta
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import Shortage
from muxcluster.scheduling.memory import reserves
from muxcluster.scheduling.memory.lending import Lending
from muxcluster.scheduling.memory.restoring import Restoring
from muxcluster.scheduling.memory.siblings import waits_for_sibling
from muxcluster.scheduling.memory.swapping import Swapping
from muxcluster.scheduling.memory.victims import least_senior
from muxcluster.scheduling.state.live import LiveRequest
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots


class Memory:
    """The scheduler's side of the KV cache."""

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
        self.lending = Lending(kv, models, is_on=is_bidirectional)
        self.swapping = Swapping(models, self.lending, self._preempt)
        self.returning = Restoring(models, self.lending, self.swapping, block_bytes, self._preempt)
        self._events: list[Event] = []

    @property
    def pool_use(self) -> float:
        """Share of the pool's blocks that live sequences hold."""
        kv = self._kv
        return 1.0 - (kv.free + kv.evictable) / kv.num_blocks

    @property
    def has_preempted(self) -> bool:
        """True where `take_events` would find some."""
        return len(self._events) > 0

    def take_events(self) -> tuple[Event, ...]:
        """Preemptions since the last call, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def admit(self, model: ModelState, live: LiveRequest) -> bool:
        """Move a waiting request into a slot with blocks for all tokens known; False: not now."""
        cached = self._open(model, live)
        if cached is None:
            return False
        slot = model.slots.occupy(live, cached, model.max_total(live.request))
        model.waiting.remove(live)
        slots = np.array([slot], dtype=np.int32)
        grown = model.kv.grow(slots, model.slots.num_tokens[slots])
        assert not isinstance(grown, Shortage), "headroom promised blocks that are not there"
        return True

    def has_room(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` would succeed now without the help of a cached prefix."""
        spare = self._headroom(model, live.side) - model.blocks(live.num_tokens)
        if spare < 0 or model.slots.num_free == 0:
            return False
        return self._reserve(model, live.side) <= spare

    def has_column(self, model: ModelState) -> bool:
        """True where a column of `model` is there without preemption."""
        return model.blocks_per_column <= model.kv.headroom()

    def fits(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` would succeed now."""
        if self._open(model, live) is None:
            return False
        model.kv.close(model.slots.next_free)
        return True

    def _open(self, model: ModelState, live: LiveRequest) -> int | None:
        """Attach the cached prefix on the next free slot; its tokens, None where it cannot fit."""
        if model.slots.num_free == 0:
            return None
        slot, num_tokens = model.slots.next_free, live.num_tokens
        hashes: list[bytes] = []
        if model.uses_prefixes(live):
            # At least one token must be left to compute, or there would be no logits.
            columns = (num_tokens - 1) // model.block_tokens
            hashes = live.extend_hashes(live.output, columns, model.block_tokens)
            if waits_for_sibling(model, live):
                return None
        if not model.kv.finds(hashes, live.side):
            # Nothing to attach, so nothing to undo where there is no room: a request that waits
            # for blocks is tried at every step.
            has_room = self._makes_room(model, live, 0)
            return model.kv.open(slot, (), live.side) if has_room else None
        cached = model.kv.open(slot, hashes, live.side)
        if self._makes_room(model, live, cached):
            return cached
        model.kv.close(slot)
        return None

    def _makes_room(self, model: ModelState, live: LiveRequest, cached: int) -> bool:
        """True where there are blocks for all its tokens but `cached` ones, at worst lent now."""
        side = live.side
        needed = model.blocks(live.num_tokens) - model.blocks(cached) + self._reserve(model, side)
        if needed <= self._headroom(model, side):
            return True
        if side is Side.LEFT and self.lending.lend_to(model, needed):
            return True
        model.is_short = True
        return False

    def may_admit(self, model: ModelState, live: LiveRequest) -> bool:
        """True where `admit` could succeed now, at worst by lending; no prefix is looked up."""
        if self.has_room(model, live):
            return True
        if live.side is not Side.LEFT or model.slots.num_free == 0:
            return False
        needed = model.blocks(live.num_tokens) + self._reserve(model, live.side)
        if needed > model.kv.quota - model.kv.used:
            return False
        return self.lending.covers(needed - model.kv.headroom(Side.LEFT))

    def grow_free(self, model: ModelState, slots: Slots) -> tuple[Slots, TableDelta | None]:
        """Room for the next token of `slots` (idle, batch), the first of them where all is too
        much; nobody is preempted.
        """
        lengths = model.slots.num_computed[slots] + np.int32(1)
        grown = model.kv.grow(slots, lengths)
        if not isinstance(grown, Shortage):
            return slots, grown
        num_columns = model.kv.headroom(Side.RIGHT) // model.blocks_per_column
        lacks = model.kv.capacity[slots] < lengths
        stays = ~lacks | (lacks.cumsum() <= num_columns)
        slots, lengths = slots[stays], lengths[stays]
        return slots, self.try_grow(model, slots, lengths)

    def saves(
        self, model: ModelState, slots: Slots, counts: NDArray[np.int32], job_id: int
    ) -> tuple[SlotCopies, ...]:
        """What the next counts[i] tokens of slots[i] are about to overwrite, and where it goes."""
        return model.kv.saves(slots, model.slots.num_computed[slots] + counts, job_id)

    def has_spare(self, model: ModelState, slot: int) -> bool:
        """True where a lent sequence could be restored and grow without lending soon again."""
        return self.returning.has_spare(model, slot, self._reserve(model, Side.RIGHT))

    def unblocked(self, model: ModelState, slots: Slots) -> Slots:
        """Those of `slots` that a running job, which restores from below them, lets grow."""
        blocked = model.kv.blocked()
        return slots if blocked is None else slots[~blocked[slots]]

    def _reserve(self, model: ModelState, side: Side) -> int:
        """Blocks for the growth of sequences that keep `side` out."""
        only_interactive = side is Side.LEFT and self.lending.is_on
        return reserves.for_growth(model, only_interactive=only_interactive)

    def _headroom(self, model: ModelState, side: Side) -> int:
        """Blocks that a request of that side may take to be admitted."""
        kv, pinned = self._kv, reserves.for_pins(self._kv, self.models, side)
        headroom = model.kv.headroom(side)
        return min(headroom, kv.free + kv.evictable - pinned) if pinned else headroom

    def try_grow(
        self, model: ModelState, slots: Slots, num_tokens: NDArray[np.int32]
    ) -> TableDelta | None:
        """Room for num_tokens[i] tokens in slots[i], or None: nobody is preempted."""
        grown = model.kv.grow(slots, num_tokens)
        return None if isinstance(grown, Shortage) else grown

    def grow(
        self, model: ModelState, slots: Slots, num_tokens: NDArray[np.int32], now: float
    ) -> tuple[Slots, TableDelta | None]:
        """Room for num_tokens[i] tokens in slots[i] (idle), preempting where blocks are short.

        Sequences lend to interactive ones first; `slots` are of one class where they can.

        Returns the slots left (some of `slots` may be preempted) and their new table entries;
        no slots and None where even the most senior has to wait for a running job.
        """
        while True:
            grown = model.kv.grow(slots, num_tokens)
            if not isinstance(grown, Shortage):
                return slots, grown
            model.is_short = True
            is_left = self.lending.is_on and not model.slots.is_batch[slots[0]]
            if is_left:
                stays = self._borrow(model, slots, num_tokens, grown)
                if stays is not None:
                    slots, num_tokens = slots[stays], num_tokens[stays]
                    continue
            among = [model] if grown.by_quota else self.models
            loser, victim = least_senior(among, is_left=is_left, by_quota=grown.by_quota)
            stays = slots != victim if loser is model else np.ones(len(slots), dtype=np.bool_)
            if not stays.any():
                return slots[:0], None
            self._preempt(loser, victim, now)
            slots, num_tokens = slots[stays], num_tokens[stays]

    def _borrow(
        self, model: ModelState, slots: Slots, num_tokens: NDArray[np.int32], short: Shortage
    ) -> NDArray[np.bool_] | None:
        """Let others lend what is `short`: which of `slots` go on, None where nothing helps.

        Those that lend do not, and where that is not enough the least senior that needs blocks
        does not: it lends to more senior ones, and waits for these and for juniors that run.
        """
        lacks = model.kv.capacity[slots] < num_tokens
        ranks = np.where(lacks, model.slots.seniority[slots], np.iinfo(np.int64).min)
        last, only = int(np.argmax(ranks)), model if short.by_quota else None
        has_lent = self.lending.lend_by_juniors(short.blocks, int(ranks[last]), only)
        stays: NDArray[np.bool_] = ~model.slots.is_lent[slots]
        if has_lent:
            return stays
        has_senior = bool((model.slots.seniority[slots] < ranks[last]).any())
        if has_senior or self.lending.has_running(int(ranks[last]), only):
            stays[last] = False
        return None if stays.all() else stays

    def _preempt(self, model: ModelState, slot: int, now: float) -> None:
        model.counters.num_recomputed_tokens += int(model.slots.num_computed[slot])
        live = self.requeue(model, slot, now, is_trusted=True)
        live.num_preemptions += 1
        model.counters.num_preemptions += 1
        self._events.append(Preempted(live.request.request_id))

    def end_copies(self, job: Job, now: float, *, succeeded: bool) -> None:
        """The job ended. If it failed, nobody knows what it saved: who was saved is recomputed."""
        if not job.copies:
            return
        models = {model.name: model for model in self.models}
        for name, slot in self.lending.end_copies(job, models, succeeded=succeeded):
            model = models[name]
            model.counters.num_recomputed_tokens += int(model.slots.num_computed[slot])
            self.requeue(model, slot, now, is_trusted=False)

    def requeue(self, model: ModelState, slot: int, now: float, *, is_trusted: bool) -> LiveRequest:
        """Take a sequence's blocks and slot; it waits at its old place and will recompute."""
        live = self.release(model, slot, is_trusted=is_trusted)
        live.account.set_back(now, keeps_memory=False)
        live.go_first()
        model.waiting.push(live)
        return live

    def release(
        self, model: ModelState, slot: int, *, is_trusted: bool, is_written: bool = False
    ) -> LiveRequest:
        """Take a sequence's blocks and slot. is_trusted: its computed columns may be published.

        is_written: a running job still writes there, so they are nobody's until `end_writes`.
        """
        if is_trusted and not model.slots.is_lent[slot]:
            self.publish(model, slot)
        if not is_written:
            model.kv.close(slot)
        return model.slots.vacate(slot, is_written=is_written)

    def end_writes(self, model: ModelState, slot: int) -> None:
        """The job that wrote to the slot of an ended sequence ran, or never will."""
        model.kv.close(slot)
        model.slots.end_writes(slot)

    def publish(self, model: ModelState, slot: int) -> None:
        """Commit the columns of `slot` that became full since the last time.

        Called when a prefill chunk ends and on release: output of a running sequence is of no
        use to others before that, and a decode step stays free of hashing.
        """
        table = model.slots
        live = table.at(slot)
        if not model.uses_prefixes(live):
            return
        known = min(int(table.num_computed[slot]), int(table.num_tokens[slot]))
        end = known // model.block_tokens
        start = int(model.kv.num_committed[slot]) // model.block_tokens
        if end > start:
            hashes = live.extend_hashes(table.output(slot), end, model.block_tokens)
            model.kv.commit(slot, hashes[start:])
