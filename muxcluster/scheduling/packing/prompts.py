"""Prompt chunks of a job, as many tokens as its time and budget allow."""

import math

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Limits
from muxcluster.scheduling.packing.draft import Draft
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows

LEAST_CHUNK = 64  # a second prompt is not begun with fewer tokens: a later job can take more

# The largest tile of the kernels and of matrix products: a part of one takes as long.
TILE_TOKENS = 128
_LEAST_TILES = 8  # of a job that is cut to whole ones: in a smaller one it costs more than it saves

# One row of so many, rounded up, stays free of batch sequences for interactive ones that come;
# where there is but one row, it does not.
_ROWS_PER_SPARE = 8


def whole_tiles(count: int, num_before: int) -> int:
    """Return `count` tokens of a prompt or a few less, so that the job is made of whole tiles.

    num_before: tokens of the job without them.
    """
    num_over = (num_before + count) % TILE_TOKENS
    if num_before + count < _LEAST_TILES * TILE_TOKENS or count - num_over < LEAST_CHUNK:
        return count
    return count - num_over


class Prompts:
    """Adds chunks to a draft: of prompts that are begun, and of requests that it admits."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self._memory = memory
        self._limits = limits

    def chunks(self, draft: Draft, rows: TableRows, limit_s: float, least: int = 0) -> bool:
        """Add chunks of begun prompts; return False where the job is full. least: see `chunk`."""
        return all(self.chunk(draft, row, limit_s, least=least) for row in rows.tolist())

    def chunk(
        self,
        draft: Draft,
        row: int,
        limit_s: float,
        *,
        is_admitted: bool = False,
        least: int = 0,
        num_to_come: int | None = None,
    ) -> bool:
        """Add as much of a prompt as fits; return True where that is all of it.

        Of a batch prompt that does not fit whole, it adds what makes the job whole tiles.

        least: tokens that the job takes of prompts whatever its time, as its budget allows.
        num_to_come: of a restored one, of which at least a token is in the job: rows that will
        decode there, too.
        """
        table = draft.model.running
        start = int(table.num_computed[row])
        left = int(table.num_tokens[row]) - start
        budget = (
            self._limits.token_budget - draft.num_tokens - draft.num_decodes - (num_to_come or 0)
        )
        budget = min(left, budget)
        count = draft.tokens_within(limit_s, start, budget) if budget > 0 else 0
        if count < left and table.is_batch[row]:
            count = whole_tiles(count, draft.num_tokens + draft.num_decodes)
        count = max(count, min(least - draft.num_tokens, budget), int(num_to_come is not None))
        if count > 0:
            draft.chunk(row, count, is_admitted=is_admitted)
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
        """Admit at most so many requests of a class; return False where job or memory is full."""
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
            assert head.row is not None
            if not self.chunk(draft, head.row, limit_s, is_admitted=True, least=max(least, 1)):
                return False
        return True


def lacks_prompts(model: ModelState) -> bool:
    """Return True where a prefill job surely has no rows; a quick check without memory or time.

    A unit of many models asks most of them for a prefill at every step, to no effect.
    """
    table, waiting = model.running, model.waiting.by_class
    if table.num_prefilling:
        return False
    if waiting[ServiceClass.INTERACTIVE].head is not None:
        return False
    head = waiting[ServiceClass.BATCH].head
    return head is None or (not head.prefills_alone and not lets_batch_in(model))


def lacks_batch_prompts(model: ModelState) -> bool:
    """Return True where a prefill job surely has no rows of the batch class."""
    table = model.running
    prefilling = table.idle_prefilling()
    if len(prefilling) and bool(table.is_batch[prefilling].any()):
        return False
    head = model.waiting.by_class[ServiceClass.BATCH].head
    may_admit = head is not None and lets_batch_in(model)
    return not may_admit and not has_lent_prompts(model)


def lets_batch_in(model: ModelState) -> bool:
    """Return True where a batch sequence may take a row, if there is memory."""
    table = model.running
    if table.num_lent:
        return False
    return table.num_free > min(table.max_seqs - 1, -(-table.max_seqs // _ROWS_PER_SPARE))


def has_lent_prompts(model: ModelState) -> bool:
    """Return True where a sequence that lent blocks has prompt left to compute."""
    table = model.running
    if not (table.num_lent and table.num_prefilling):
        return False
    return bool((table.is_lent & table.is_prefilling).any())
