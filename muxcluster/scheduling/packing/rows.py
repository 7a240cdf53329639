"""Rows that a job gets: prompt chunks and new requests, and sequences that are restored with it."""

import math

import numpy as np

from muxcluster.core.job import Phase
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.memory.lending import Restored
from muxcluster.scheduling.packing.batch import Draft, Limits, Turn
from muxcluster.scheduling.packing.slack import Ageing, Slack
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import RunningTable, TableRows
from muxcluster.scheduling.steptime.line import decode_work
from muxcluster.scheduling.steptime.model import StepTimes

LEAST_CHUNK = 64  # a second prompt is not begun with fewer tokens: a later job can take more

# The largest tile of the kernels and of matrix products: a part of one takes as long.
TILE_TOKENS = 128
_LEAST_TILES = 8  # of a job that is cut to whole ones: in a smaller one it costs more than it saves


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
    return not table.num_lent and table.num_free > table.num_spare


def has_lent_prompts(model: ModelState) -> bool:
    """Return True where a sequence that lent blocks has prompt left to compute."""
    table = model.running
    if not (table.num_lent and table.num_prefilling):
        return False
    return bool((table.is_lent & table.is_prefilling).any())


class RestoredRows:
    """Adds lent sequences of a model to a draft, each with the copies that make it whole."""

    def __init__(
        self, memory: Memory, limits: Limits, times: StepTimes, slack: Slack, ageing: Ageing
    ) -> None:
        self._memory = memory
        self._limits = limits
        self._times = times
        self._slack = slack
        self._ageing = ageing
        self._prompts = Prompts(memory, limits)

    def by_force(self, draft: Draft, turn: Turn, phase: Phase) -> None:
        """Restore the most senior lent sequence where nothing else can run; others give way."""
        table = draft.model.running
        row = int(table.by_seniority(table.idle_lent())[0])
        if _is_for(phase, bool(table.is_prefilling[row])):
            restored = self._memory.restore_by_force(draft.model, row, turn.job_id, turn.now)
            if restored is not None:
                is_suspect = bool(table.is_suspect[row])
                self._add_restored(draft, row, restored, math.inf, is_admitted=is_suspect)
                draft.save(self._memory, turn.job_id)

    def interactive(self, draft: Draft, turn: Turn, phase: Phase) -> None:
        """Restore lent interactive sequences, before others could take their memory again."""
        model, memory, table = draft.model, self._memory, draft.model.running
        num_to_come = 0
        if phase is Phase.MIXED:
            num_to_come = int(np.add.reduce(table.uncomputed(table.idle_decoding())))
        while (
            len(draft) < self._limits.max_decode_rows
            and draft.num_tokens + draft.num_decodes < self._limits.most_tokens(phase)
            and (row := memory.next_interactive(model)) is not None
        ):
            is_prefilling = bool(table.is_prefilling[row])
            if not _is_for(phase, is_prefilling) or self._is_full(draft, row, phase):
                return
            if table.is_suspect[row]:
                return
            restored = memory.restore_interactive(model, row, turn.job_id)
            if restored is None:
                return
            limit_s = self._slack.for_prompts(draft, turn)
            self._add_restored(draft, row, restored, limit_s, num_to_come=num_to_come)
            # It may lie over another lent sequence, which must then wait for the next job.
            draft.save(memory, turn.job_id)
            table.start_job(np.array([row], dtype=np.int32))

    def batch(
        self,
        draft: Draft,
        turn: Turn,
        phase: Phase,
        limit_s: float,
        room: int,
        *,
        is_prefilling: bool,
    ) -> None:
        """Restore lent sequences and let them run, as long as copying makes nobody late."""
        memory, model, table = self._memory, draft.model, draft.model.running
        copied_s, most_s = 0.0, self._slack.for_prompts(draft, turn)
        if self._ageing.is_overdue(model, turn.now):
            limit_s = most_s = math.inf
        for row in memory.restorable(model).tolist():
            if not table.is_batch[row] or table.is_suspect[row]:
                continue
            is_full = draft.num_tokens + draft.num_decodes >= self._limits.token_budget
            if room <= 0 or (is_prefilling and is_full) or not memory.has_spare(model, row):
                return
            if bool(table.is_prefilling[row]) is not is_prefilling:
                continue
            if self._is_full(draft, row, phase):
                return
            copy_s = self._times.copies.copy_s(memory.lent_bytes(model, row))
            if draft.seconds_with(*_next_work(table, row)) > limit_s:
                return
            if copied_s + copy_s > most_s:
                continue
            copied_s += copy_s
            restored = memory.restore(model, row, turn.job_id)
            if restored is None:
                return
            room -= 1
            self._add_restored(draft, row, restored, limit_s)

    def _is_full(self, draft: Draft, row: int, phase: Phase) -> bool:
        """Return True where the job, or a padded batch's memory, has no room for a decoding row."""
        only, table = np.array([row], dtype=np.int32), draft.model.running
        if table.is_prefilling[row]:
            return False
        num_tokens = self._limits.most_tokens(phase) - draft.num_tokens - draft.num_decodes
        least = int(len(draft) == 0)
        return len(table.within(draft.fitting(only), num_tokens, least=least)) == 0

    def _add_restored(
        self,
        draft: Draft,
        row: int,
        restored: Restored,
        limit_s: float,
        *,
        is_admitted: bool = False,
        num_to_come: int = 0,
    ) -> None:
        """The row of a sequence that has just been restored. num_to_come: see Prompts.chunk."""
        draft.restore(restored)
        if draft.model.running.is_prefilling[row]:
            self._prompts.chunk(
                draft,
                row,
                limit_s,
                is_admitted=is_admitted,
                num_to_come=num_to_come,
            )
        else:
            only = np.array([row], dtype=np.int32)
            rows, grown = self._memory.grow_free(draft.model, only)
            is_batch = bool(draft.model.running.is_batch[row])
            draft.decode(rows, grown, is_batch=is_batch, is_admitted=is_admitted)


def _next_work(table: RunningTable, row: int) -> tuple[int, int]:
    """Return the tokens that a row decodes next, one of a prompt, and those they attend to."""
    only = np.array([row], dtype=np.int32)
    counts = np.ones_like(only) if table.is_prefilling[row] else table.uncomputed(only)
    return decode_work(table.num_computed[only], counts)


def _is_for(phase: Phase, is_prefilling: bool) -> bool:
    return phase is Phase.MIXED or is_prefilling is (phase is Phase.PREFILL)
