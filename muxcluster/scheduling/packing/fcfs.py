"""First come, first served, with chunked prefill: the packing of continuous batching (Orca, vLLM).

The head of a queue is never passed over, so a long prompt that waits for blocks gets them.
"""

import numpy as np

from muxcluster.scheduling.memory import Memory
from muxcluster.scheduling.modelstate import ModelState
from muxcluster.scheduling.packing.batch import Batch, Limits

_SUSPECT_FAILURES = 2
"""A request whose jobs failed this often runs alone, so that it takes nobody with it."""


class FcfsPacking:
    """Seniority decides, interactive before batch."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory = memory
        self._limits = limits

    def may_prefill(self, model: ModelState) -> bool:
        """True where a chunk or an admissible request waits."""
        if len(model.slots.idle_prefilling()):
            return True
        head = model.waiting.head
        return head is not None and self._memory.fits(model, head)

    def prefill(self, model: ModelState) -> Batch:
        """Chunks of admitted prompts, then new requests, within the token budget."""
        return self._chunks(model, self._limits.token_budget)

    def decode(self, model: ModelState) -> Batch:
        """All idle decoding sequences, the most senior ones where they are too many."""
        return self._decodes(model, self._limits.max_decode_rows, self._limits.max_steps)

    def mixed(self, model: ModelState) -> Batch:
        """Every decode costs one token of the budget, chunks take the rest."""
        limits = self._limits
        decodes = self._decodes(model, min(limits.max_decode_rows, limits.token_budget), 1)
        chunks = self._chunks(model, limits.token_budget - len(decodes), is_alone=not len(decodes))
        return Batch(
            slots=np.concatenate((decodes.slots, chunks.slots)),
            counts=np.concatenate((decodes.counts, chunks.counts)),
            grown=decodes.grown,
            admitted=chunks.admitted,
        )

    def _decodes(self, model: ModelState, max_rows: int, max_steps: int) -> Batch:
        table = model.slots
        slots = table.idle_decoding()
        if len(slots) > max_rows:
            slots = np.sort(table.by_seniority(slots)[:max_rows])
        if len(slots) == 0:
            return Batch(slots, slots)
        steps = min(max_steps, int((table.max_total[slots] - table.num_tokens[slots]).min()))
        # One step more than one is worth no preemption.
        grown = self._memory.try_grow(model, slots, table.num_computed[slots] + np.int32(steps))
        if grown is None:
            steps = 1
            slots, grown = self._memory.grow(model, slots, table.num_computed[slots] + np.int32(1))
        return Batch(slots, np.ones_like(slots), grown, max_steps=steps)

    def _chunks(self, model: ModelState, budget: int, *, is_alone: bool = True) -> Batch:
        """Prompt chunks of at most `budget` tokens; is_alone: the job has no other rows."""
        table = model.slots
        slots: list[int] = []
        counts: list[int] = []
        admitted: list[int] = []

        def has_room(num_failures: int) -> bool:
            return num_failures < _SUSPECT_FAILURES or (is_alone and not slots)

        def take(slot: int) -> None:
            nonlocal budget
            count = min(budget, int(table.num_tokens[slot] - table.num_computed[slot]))
            slots.append(slot)
            counts.append(count)
            budget = 0 if table.at(slot).num_failures >= _SUSPECT_FAILURES else budget - count

        for slot in table.idle_prefilling().tolist():
            if budget == 0 or not has_room(table.at(slot).num_failures):
                break
            take(slot)
        while budget and (head := model.waiting.head) and has_room(head.num_failures):
            if not self._memory.admit(model, head):
                break
            assert head.slot is not None
            admitted.append(head.slot)
            take(head.slot)
        return Batch(
            np.array(slots, dtype=np.int32), np.array(counts, dtype=np.int32), admitted=admitted
        )
