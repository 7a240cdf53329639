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
        model, memory = draft.model, self._memory
        idle = model.running.idle_decoding() if phase is Phase.MIXED else ()
        room = min(self._limits.max_decode_rows, self._limits.token_budget)
        while (
            len(draft) + draft.num_tokens < room
            and (row := memory.next_interactive(model)) is not None
        ):
            if not _is_for(phase, bool(model.running.is_prefilling[row])) or _is_full(draft, row):
                return
            if model.running.is_suspect[row]:
                return
            restored = memory.restore_interactive(model, row, turn.job_id)
            if restored is None:
                return
            limit_s = self._slack.for_prompts(draft, turn)
            self._add_restored(draft, row, restored, limit_s, num_to_come=len(idle))
            # It may lie over another lent sequence, which must then wait for the next job.
            draft.save(memory, turn.job_id)
            model.running.start_job(np.array([row], dtype=np.int32))

    def batch(
        self, draft: Draft, turn: Turn, limit_s: float, room: int, *, is_prefilling: bool
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
            if _is_full(draft, row):
                return
            context = int(table.num_computed[row]) + 1
            copy_s = self._times.copies.copy_s(memory.lent_bytes(model, row))
            if draft.seconds_with(1, context) > limit_s:
                return
            if copied_s + copy_s > most_s:
                continue
            copied_s += copy_s
            restored = memory.restore(model, row, turn.job_id)
            if restored is None:
                return
            room -= 1
            self._add_restored(draft, row, restored, limit_s)

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


def _is_full(draft: Draft, row: int) -> bool:
    """True where a padded batch has no memory for the row's next token."""
    only = np.array([row], dtype=np.int32)
    return not draft.model.running.is_prefilling[row] and len(draft.fitting(only)) == 0


def _is_for(phase: Phase, is_prefilling: bool) -> bool:
    return phase is Phase.MIXED or is_prefilling is (phase is Phase.PREFILL)
