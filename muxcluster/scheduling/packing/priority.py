"""Continuous batching with chunked prefill, the most senior first (vLLM's `priority` policy).

The head of a queue is never passed over, so a long prompt that waits for blocks gets them.
"""

from collections.abc import Sequence

import numpy as np

from muxcluster.core.job import Job
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Limits, Turn
from muxcluster.scheduling.packing.candidates import Candidates, Everybody
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots
from muxcluster.scheduling.steptime.model import StepTimes


class PriorityPacking:
    """Seniority decides: interactive before batch, then priority, then arrival."""

    is_class_blind = False
    by_deadline = False
    may_lend = False
    repeats = True
    predicts = False

    def __init__(
        self,
        memory: Memory,
        limits: Limits,
        times: StepTimes,
        candidates: Candidates | None = None,
    ) -> None:
        """candidates: who may be in a job, everybody by default. times: not asked."""
        self._memory = memory
        self._limits = limits
        self._candidates = candidates or Everybody()

    def may_prefill(self, model: ModelState) -> bool:
        """True where a chunk or an admissible request waits."""
        if len(self._candidates.prefilling(model)):
            return True
        head = self._candidates.head(model)
        return head is not None and self._memory.fits(model, head)

    def backlog(self, models: Sequence[ModelState]) -> float:
        """By tokens; a model lacks blocks where its next request would get none."""
        num_tokens = 0
        for model in models:
            table, head = model.slots, model.waiting.head
            if len(slots := table.idle_prefilling()):
                num_tokens += int((table.num_tokens[slots] - table.num_computed[slots]).sum())
            if head is not None and self._memory.has_room(model, head):
                num_tokens += model.waiting.num_tokens
        return num_tokens / self._limits.token_budget

    def pool_use(self) -> float:
        """Share of the pool's blocks that live sequences hold."""
        return self._memory.pool_use

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """Nothing to learn: no step time is predicted."""

    def decodes_all(self, model: ModelState) -> bool:
        """Always."""
        return True

    def prefill(self, model: ModelState, turn: Turn) -> Batch:
        """Chunks of admitted prompts, then new requests, within the token budget."""
        return self._chunks(model, self._limits.token_budget)

    def decode(self, model: ModelState, turn: Turn) -> Batch:
        """All idle decoding sequences, the most senior ones where they are too many."""
        return self._decodes(model, turn.now, self._limits.max_decode_rows, self._limits.max_steps)

    def mixed(self, model: ModelState, turn: Turn) -> Batch:
        """Every decode costs one token of the budget, chunks take the rest."""
        limits = self._limits
        if self._has_suspect_first(model) and len(
            alone := self._chunks(model, limits.token_budget)
        ):
            return alone
        decodes = self._decodes(
            model, turn.now, min(limits.max_decode_rows, limits.token_budget), 1
        )
        if len(decodes.admitted):
            return decodes
        chunks = self._chunks(model, limits.token_budget - len(decodes), is_alone=not len(decodes))
        return Batch(
            slots=np.concatenate((decodes.slots, chunks.slots)),
            counts=np.concatenate((decodes.counts, chunks.counts)),
            grown=decodes.grown,
            admitted=chunks.admitted,
        )

    def _has_suspect_first(self, model: ModelState) -> bool:
        """True where the prompt whose turn it is must be alone in its job."""
        if len(prefilling := self._candidates.prefilling(model)):
            return bool(model.slots.is_suspect[prefilling[0]])
        head = self._candidates.head(model)
        return head is not None and head.prefills_alone

    def _decodes(self, model: ModelState, now: float, max_rows: int, max_steps: int) -> Batch:
        """The most senior suspect alone, everybody else where there is none or it must wait."""
        table = model.slots
        slots = self._candidates.decoding(model)
        if table.has_suspect(slots):
            is_suspect = table.is_suspect[slots]
            lone = table.by_seniority(slots[is_suspect])[:1]
            batch = self._grown(model, lone, now, max_steps)
            if len(batch):
                batch.admitted = batch.slots.tolist()
                return batch
            slots = slots[~is_suspect]
        if len(slots) > max_rows or len(model.fitting(slots)) < len(slots):
            slots = np.sort(model.fitting(table.by_seniority(slots)[:max_rows]))
        return self._grown(model, slots, now, max_steps)

    def _grown(self, model: ModelState, slots: Slots, now: float, max_steps: int) -> Batch:
        """Decode `slots`, as far as memory goes."""
        table = model.slots
        if len(slots) == 0:
            return Batch(slots, slots)
        steps = max_steps
        if steps > 1:
            left = table.max_total[slots] - table.num_tokens[slots]
            steps = min(steps, int(left.min()))
        # One step more than one is worth no preemption.
        grown = self._memory.try_grow(model, slots, table.num_computed[slots] + np.int32(steps))
        if grown is None:
            steps = 1
            lengths = table.num_computed[slots] + np.int32(1)
            slots, grown = self._memory.grow(model, slots, lengths, now)
        return Batch(slots, np.ones(len(slots), dtype=np.int32), grown, max_steps=steps)

    def _chunks(self, model: ModelState, budget: int, *, is_alone: bool = True) -> Batch:
        """Prompt chunks of at most `budget` tokens; is_alone: the job has no other rows."""
        table = model.slots
        slots: list[int] = []
        counts: list[int] = []
        admitted: list[int] = []

        def has_room(is_suspect: bool) -> bool:
            return not is_suspect or (is_alone and not slots)

        def take(slot: int) -> None:
            nonlocal budget
            count = min(budget, int(table.num_tokens[slot] - table.num_computed[slot]))
            slots.append(slot)
            counts.append(count)
            budget = 0 if table.is_suspect[slot] else budget - count

        for slot in self._candidates.prefilling(model).tolist():
            if budget == 0 or not has_room(bool(table.is_suspect[slot])):
                break
            if table.is_suspect[slot]:
                admitted.append(slot)
            take(slot)
        while budget and (head := self._candidates.head(model)):
            if not has_room(head.prefills_alone) or not self._memory.admit(model, head):
                break
            assert head.slot is not None
            admitted.append(head.slot)
            take(head.slot)
        return Batch(
            np.array(slots, dtype=np.int32), np.array(counts, dtype=np.int32), admitted=admitted
        )
