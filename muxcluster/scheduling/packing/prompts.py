"""Prompt chunks of a job, as many tokens as its time and budget allow."""

import math

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Limits
from muxcluster.scheduling.packing.draft import Draft
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.slots import Slots

LEAST_CHUNK = 64  # a second prompt is not begun with fewer tokens: a later job can take more

# The largest tile of the kernels and of matrix products: a part of one takes as long.
TILE_TOKENS = 128
_LEAST_TILES = 8  # of a job that is cut to whole ones: in a smaller one it costs more than it saves

# One row of so many, rounded up, stays free of batch sequences for interactive ones that come;
# where there is but one row, it does not.
_ROWS_PER_SPARE = 8


def whole_tiles(count: int, num_before: int) -> int:
    """So many tokens of a prompt or a few less, so that the job, which has `num_before` tokens
    without them, is made of whole tiles."""
    num_over = (num_before + count) % TILE_TOKENS
    if num_before + count < _LEAST_TILES * TILE_TOKENS or count - num_over < LEAST_CHUNK:
        return count
    return count - num_over


class Prompts:
    """Adds chunks to a draft: of prompts that are begun, and of requests that it admits."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory = memory
        self._limits = limits

    def chunks(self, draft: Draft, slots: Slots, limit_s: float, least: int = 0) -> bool:
        """Chunks of prompts that are begun; False where the job is full. least: see `chunk`."""
        return all(self.chunk(draft, slot, limit_s, least=least) for slot in slots.tolist())

    def chunk(
        self,
        draft: Draft,
        slot: int,
        limit_s: float,
        *,
        is_admitted: bool = False,
        least: int = 0,
        num_to_come: int | None = None,
    ) -> bool:
        """As much of a prompt as fits; True: all of it. Of one of the batch class that does not fit
        whole, what makes the job whole tiles.

        least: tokens that the job takes of prompts whatever its time, as its budget allows.
        num_to_come: of a restored one, of which at least a token is in the job: rows that will
        decode there, too.
        """
        table = draft.model.slots
        start = int(table.num_computed[slot])
        left = int(table.num_tokens[slot]) - start
        budget = (
            self._limits.token_budget - draft.num_tokens - draft.num_decodes - (num_to_come or 0)
        )
        budget = min(left, budget)
        count = draft.tokens_within(limit_s, start, budget) if budget > 0 else 0
        if count < left and table.is_batch[slot]:
            count = whole_tiles(count, draft.num_tokens + draft.num_decodes)
        count = max(count, min(least - draft.num_tokens, budget), int(num_to_come is not None))
        if count > 0:
            draft.chunk(slot, count, is_admitted=is_admitted)
        return count == left

    def admit(
        self,
        draft: Draft,
        service: ServiceClass,
        limit_s: float,
        *,
        most: float = math.inf,
        least: int = 0,
    ) -> bool:
        """At most so many new requests of a class; False where the job or memory is full."""
        waiting = draft.model.waiting.by_class[service]
        while (head := waiting.head) is not None:
            most -= 1
            budget = self._limits.token_budget - draft.num_tokens - draft.num_decodes
            needed = min(head.num_tokens, LEAST_CHUNK if draft.num_tokens else 1)
            count = max(draft.tokens_within(limit_s, 0, budget), least - draft.num_tokens)
            if most < 0 or budget <= 0 or count < needed:
                return False
            if service is ServiceClass.BATCH and not lets_batch_in(draft.model):
                return False
            if not self._memory.admit(draft.model, head):
                return False
            assert head.slot is not None
            if not self.chunk(draft, head.slot, limit_s, is_admitted=True, least=max(least, 1)):
                return False
        return True


def lacks_prompts(model: ModelState) -> bool:
    """True where nothing could be in a prefill job; where it is False there may still be nothing.

    A unit of many models asks most of them for a prefill at every step, to no effect.
    """
    table, waiting = model.slots, model.waiting.by_class
    if table.num_prefilling:
        return False
    if waiting[ServiceClass.INTERACTIVE].head is not None:
        return False
    head = waiting[ServiceClass.BATCH].head
    return head is None or (not head.prefills_alone and not lets_batch_in(model))


def lacks_batch_prompts(model: ModelState) -> bool:
    """`lacks_prompts`, of the batch class alone."""
    table = model.slots
    prefilling = table.idle_prefilling()
    if len(prefilling) and bool(table.is_batch[prefilling].any()):
        return False
    head = model.waiting.by_class[ServiceClass.BATCH].head
    may_admit = head is not None and lets_batch_in(model)
    return not may_admit and not has_lent_prompts(model)


def lets_batch_in(model: ModelState) -> bool:
    """True where a batch sequence may take a slot, if there is memory."""
    table = model.slots
    if table.num_lent:
        return False
    return table.num_free > min(table.max_seqs - 1, -(-table.max_seqs // _ROWS_PER_SPARE))


def has_lent_prompts(model: ModelState) -> bool:
    """True where a sequence that lends has prompt left to compute."""
    table = model.slots
    if not (table.num_lent and table.num_prefilling):
        return False
    return bool((table.is_lent & table.is_prefilling).any())
