"""Rows of a job that lent blocks and are restored with it."""

import math

import numpy as np

from muxcluster.core.job import Phase
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.memory.lending import Restored
from muxcluster.scheduling.packing.batch import Limits, Turn
from muxcluster.scheduling.packing.draft import Draft
from muxcluster.scheduling.packing.prompts import Prompts
from muxcluster.scheduling.packing.slack import Ageing, Slack
from muxcluster.scheduling.steptime.model import StepTimes


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
        """Where nothing else can run, the most senior lent sequence does, whoever gives way."""
        table = draft.model.slots
        slot = int(table.by_seniority(table.idle_lent())[0])
        if _is_for(phase, bool(table.is_prefilling[slot])):
            restored = self._memory.restore_by_force(draft.model, slot, turn.job_id, turn.now)
            if restored is not None:
                is_suspect = bool(table.is_suspect[slot])
                self._add_restored(draft, slot, restored, math.inf, is_admitted=is_suspect)
                draft.save(self._memory, turn.job_id)

    def interactive(self, draft: Draft, turn: Turn, phase: Phase) -> None:
        """Lent interactive sequences, before anything that could take their memory again."""
        model, memory = draft.model, self._memory
        idle = model.slots.idle_decoding() if phase is Phase.MIXED else ()
        room = min(self._limits.max_decode_rows, self._limits.token_budget)
        while (
            len(draft) + draft.num_tokens < room
            and (slot := memory.next_interactive(model)) is not None
        ):
            if not _is_for(phase, bool(model.slots.is_prefilling[slot])) or _is_full(draft, slot):
                return
            if model.slots.is_suspect[slot]:
                return
            restored = memory.restore_interactive(model, slot, turn.job_id)
            if restored is None:
                return
            limit_s = self._slack.for_prompts(draft, turn)
            self._add_restored(draft, slot, restored, limit_s, num_to_come=len(idle))
            # It may lie over one that lent, too, which must then wait for the next job.
            draft.save(memory, turn.job_id)
            model.slots.start_job(np.array([slot], dtype=np.int32))

    def batch(
        self, draft: Draft, turn: Turn, limit_s: float, room: int, *, is_prefilling: bool
    ) -> None:
        """Restore lent sequences and let them run, as long as copying makes nobody late."""
        memory, model, table = self._memory, draft.model, draft.model.slots
        copied_s, most_s = 0.0, self._slack.for_prompts(draft, turn)
        if self._ageing.is_overdue(model, turn.now):
            limit_s = most_s = math.inf
        for slot in memory.restorable(model).tolist():
            if not table.is_batch[slot] or table.is_suspect[slot]:
                continue
            is_full = draft.num_tokens + draft.num_decodes >= self._limits.token_budget
            if room <= 0 or (is_prefilling and is_full) or not memory.has_spare(model, slot):
                return
            if bool(table.is_prefilling[slot]) is not is_prefilling:
                continue
            if _is_full(draft, slot):
                return
            context = int(table.num_computed[slot]) + 1
            copy_s = self._times.copies.copy_s(memory.lent_bytes(model, slot))
            if draft.seconds_with(1, context) > limit_s:
                return
            if copied_s + copy_s > most_s:
                continue
            copied_s += copy_s
            restored = memory.restore(model, slot, turn.job_id)
            if restored is None:
                return
            room -= 1
            self._add_restored(draft, slot, restored, limit_s)

    def _add_restored(
        self,
        draft: Draft,
        slot: int,
        restored: Restored,
        limit_s: float,
        *,
        is_admitted: bool = False,
        num_to_come: int = 0,
    ) -> None:
        """The row of a sequence that has just been restored. num_to_come: see Prompts.chunk."""
        draft.restore(restored)
        if draft.model.slots.is_prefilling[slot]:
            self._prompts.chunk(
                draft,
                slot,
                limit_s,
                is_admitted=is_admitted,
                num_to_come=num_to_come,
            )
        else:
            slots = np.array([slot], dtype=np.int32)
            rows, grown = self._memory.grow_free(draft.model, slots)
            is_batch = bool(draft.model.slots.is_batch[slot])
            draft.decode(rows, grown, is_batch=is_batch, is_admitted=is_admitted)


def _is_full(draft: Draft, slot: int) -> bool:
    """True where a padded batch has no memory for the slot's next token."""
    slots = np.array([slot], dtype=np.int32)
    return not draft.model.slots.is_prefilling[slot] and len(draft.fitting(slots)) == 0


def _is_for(phase: Phase, is_prefilling: bool) -> bool:
    return phase is Phase.MIXED or is_prefilling is (phase is Phase.PREFILL)
