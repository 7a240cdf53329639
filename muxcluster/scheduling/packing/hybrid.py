"""Hybrid packing: interactive rows by urgency, batch rows in the time and memory they leave.

BROS Alg. 1 with three changes. The size of a job is not grown by trial but follows from predicted
step times: batch rows are added while the job meets every target that can still be met, those of
requests that may come while it runs included (slack.py). And memory is no swap of whole sequences:
see lending.py.
"""

import math

import numpy as np

from muxcluster.core.job import Job, Phase, Side
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Draft, Limits, Turn
from muxcluster.scheduling.packing.rows import (
    LEAST_CHUNK,
    Prompts,
    RestoredRows,
    has_lent_prompts,
    lacks_batch_prompts,
    lacks_prompts,
    lets_batch_in,
)
from muxcluster.scheduling.packing.slack import Ageing, Slack
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.steptime.model import StepTimes

_NOBODY: TableRows = np.empty(0, dtype=np.int32)


class HybridPacking:
    """Interactive before batch, and batch only within the slack."""

    is_class_blind = False
    by_deadline = True
    may_lend = True
    repeats = False
    predicts = True

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None:
        self._memory = memory
        self._limits = limits
        self._times = times
        self._slack = Slack(memory, times, limits.token_budget)
        self._ageing = Ageing(limits.ageing_s)
        self._prompts = Prompts(memory, limits)
        self._returns = RestoredRows(memory, limits, times, self._slack, self._ageing)

    def may_prefill(self, model: ModelState) -> bool:
        """Return True where a chunk or an admissible request waits."""
        if len(model.running.idle_prefilling()):
            return True
        if (row := self._memory.next_interactive(model)) is not None:
            return bool(model.running.is_prefilling[row])
        head = None if self._memory.owes_interactive else model.waiting.head
        return head is not None and self._memory.may_admit(model, head)

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        self._times.observe(job, seconds, num_beside=num_beside)

    def decodes_all(self, model: ModelState) -> bool:
        """Return True where no batch work is here: the room for it changes with time."""
        return not model.has_batch_work

    def pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        """Interactive decodes and chunks, then those of the batch class while there is slack."""
        if phase is Phase.PREFILL and lacks_prompts(model):
            self._ageing.note(model, 0, turn.now)
            return Batch(_NOBODY, _NOBODY, copies=())
        table = model.running
        draft = Draft(model, self._times.of(model.name, turn.share))
        self._fill(draft, turn, phase)
        if table.num_lent and len(draft) == 0:
            self._returns.by_force(draft, turn, phase)
        self._ageing.note(model, draft.num_batch, turn.now)
        return draft.batch()

    def _fill(self, draft: Draft, turn: Turn, phase: Phase) -> None:
        is_done, model = True, draft.model
        if model.running.num_lent:
            self._returns.interactive(draft, turn, phase)
        if phase is not Phase.PREFILL:
            self._urgent_decodes(draft, turn, phase)
        if phase is not Phase.DECODE:
            is_done = self._urgent_prompts(draft, turn)
        draft.save(self._memory, turn.job_id)
        if not model.has_batch_work or (phase is Phase.PREFILL and lacks_batch_prompts(model)):
            return
        is_waited_for = self._is_waited_for(model, phase)
        limit_s = draft.seconds if is_waited_for else self._limit_s(draft, turn, phase)
        if phase is not Phase.PREFILL and model.running.num_batch:
            self._batch_decodes(draft, turn, phase, limit_s)
        if phase is not Phase.DECODE:
            self._batch_prompts(draft, turn, phase, limit_s, is_done=is_done)

    def _limit_s(self, draft: Draft, turn: Turn, phase: Phase) -> float:
        return self._slack.for_batch(draft, turn, phase)

    def _room(self, draft: Draft) -> int:
        return self._limits.max_decode_rows - len(draft)

    def _token_room(self, draft: Draft, phase: Phase) -> int:
        return self._limits.most_tokens(phase) - draft.num_tokens - draft.num_decodes

    def _is_waited_for(self, model: ModelState, phase: Phase) -> bool:
        """Return True where an interactive request waits for the next job, or for blocks."""
        # Batch rows would only delay it, unless it waits for a row, or for blocks that are not
        # lent: then batch rows must end first.
        head = model.waiting.by_class[ServiceClass.INTERACTIVE].head
        if head is None or (model.running.num_batch and not model.running.has_row(Side.LEFT)):
            return False
        if not self._memory.may_admit(model, head):
            return self._memory.lends
        return phase is not Phase.DECODE

    def _urgent_decodes(self, draft: Draft, turn: Turn, phase: Phase) -> None:
        model, table = draft.model, draft.model.running
        most = self._limits.max_decode_rows - len(draft)
        num_tokens = self._token_room(draft, phase)
        idle = self._memory.unblocked(model, table.idle_decoding())
        urgent = idle[~table.is_batch[idle]] if table.num_batch else idle
        if most <= 0:
            return
        fitting = table.within(draft.fitting(urgent[:most]), num_tokens)
        if len(fitting) < len(urgent):
            first = urgent[np.argsort(table.deadline_s[urgent], kind="stable")[:most]]
            least = int(len(draft) == 0)
            urgent = table.within(draft.fitting(first), num_tokens, least=least)
        if len(urgent):
            lengths = table.num_tokens[urgent]
            rows, grown = self._memory.grow(model, urgent, lengths, turn.now)
            draft.decode(rows, grown, is_batch=False)

    def _batch_decodes(self, draft: Draft, turn: Turn, phase: Phase, limit_s: float) -> None:
        """Those that have all their blocks, most senior first, then those that lent some."""
        memory, model, table = self._memory, draft.model, draft.model.running
        room, num_tokens = self._room(draft), self._token_room(draft, phase)
        idle = table.idle_decoding()
        least = int(self._ageing.is_overdue(model, turn.now) or self._is_alone(draft))
        rows = draft.fitting(table.by_seniority(idle[table.is_batch[idle]])[:room])
        rows = table.within(rows, num_tokens, least=least)
        chosen = rows[: max(least, draft.rows_within(limit_s, rows))]
        rows, grown = memory.grow_free(model, chosen)
        if len(rows) == 0 and len(draft) == 0 and len(chosen) and memory.is_stuck:
            rows = draft.fitting(table.by_seniority(idle)[: max(1, room)])
            rows = table.within(rows, num_tokens, least=1)
            rows, grown, saves = memory.grow_by_force(model, rows, turn.job_id, turn.now)
            draft.copy(saves)
        draft.decode(rows, grown, is_batch=True)
        if table.num_lent:
            room -= len(rows)
            self._returns.batch(draft, turn, phase, limit_s, room, is_prefilling=False)

    def _is_alone(self, draft: Draft) -> bool:
        """Return True where batch work has the unit to itself: it gets on, whoever may come."""
        return len(draft) == 0 and not self._memory.has_interactive

    def _urgent_prompts(self, draft: Draft, turn: Turn) -> bool:
        """Return False where an interactive prompt waits for room in the job, or for memory."""
        model, table = draft.model, draft.model.running
        prefilling = self._memory.unblocked(model, table.idle_prefilling())
        if table.num_batch and len(prefilling):
            prefilling = prefilling[~table.is_batch[prefilling]]
        waiting = model.waiting.by_class[ServiceClass.INTERACTIVE]
        waiting.renew(turn.now, self._limits.ageing_s)
        if not len(prefilling) and waiting.head is None:
            return True
        limit_s = self._slack.for_prompts(draft, turn)
        # Otherwise a prediction that stays wrong could keep prompts out forever.
        least = LEAST_CHUNK if _is_late(model, prefilling, turn.now) else 0
        if not self._prompts.chunks(draft, prefilling, limit_s, least):
            return False
        if self._memory.owes_interactive:
            return False
        if self._ageing.is_starved(model, turn.now):
            return True
        return self._prompts.admit(draft, ServiceClass.INTERACTIVE, limit_s, least=least)

    def _batch_prompts(
        self, draft: Draft, turn: Turn, phase: Phase, limit_s: float, *, is_done: bool
    ) -> None:
        """is_done: no interactive prompt waits; otherwise no new request is admitted."""
        model, table = draft.model, draft.model.running
        is_overdue = self._ageing.is_overdue(model, turn.now)
        if is_overdue:
            limit_s = math.inf
        prefilling = table.idle_prefilling()
        if len(prefilling):
            begun = prefilling[table.is_batch[prefilling]][: self._room(draft)]
            if not self._prompts.chunks(draft, begun, limit_s, int(self._is_alone(draft))):
                return
        if not (is_done or is_overdue):
            return
        if has_lent_prompts(model):
            room = self._room(draft)
            self._returns.batch(draft, turn, phase, limit_s, room, is_prefilling=True)
        if lets_batch_in(model):
            least, most = int(self._is_alone(draft)), self._room(draft)
            self._prompts.admit(draft, ServiceClass.BATCH, limit_s, most=most, least=least)


def _is_late(model: ModelState, prefilling: TableRows, now: float) -> bool:
    """Return True where some interactive prompt has missed its target."""
    head = model.waiting.by_class[ServiceClass.INTERACTIVE].head
    if head is not None and head.deadline_s < now:
        return True
    return len(prefilling) > 0 and bool((model.running.deadline_s[prefilling] < now).any())
