"""Continuous batching with chunked prefill, the most senior first (vLLM's `priority` policy).

The head of a queue is never passed over, so a long prompt that waits for blocks gets them.
"""

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Batch, Limits, Turn
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import TableRows
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
        only: ServiceClass | None = None,
    ) -> None:
        """only: the class of the requests that may be in a job, any by default. times: not used."""
        self._memory = memory
        self._limits = limits
        self._only = only

    def may_prefill(self, model: ModelState) -> bool:
        """True where a chunk or an admissible request waits."""
        if len(self._prefilling(model)):
            return True
        head = self._head(model)
        return head is not None and self._memory.fits(model, head)

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """Learn nothing: no step time is predicted."""

    def decodes_all(self, model: ModelState) -> bool:
        """Always."""
        return True

    def pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        """Begun prompts before new ones; decodes take their tokens of a mixed job's budget."""
        limits = self._limits
        if phase is Phase.PREFILL:
            return self._chunks(model, limits.token_budget)
        if phase is Phase.DECODE:
            return self._decodes(model, turn.now, phase, limits.max_steps)
        decodes = self._decodes(model, turn.now, phase, 1)
        num_decodes = int(np.add.reduce(decodes.counts))
        chunks = self._chunks(model, max(0, limits.token_budget - num_decodes))
        return Batch(
            rows=np.concatenate((decodes.rows, chunks.rows)),
            counts=np.concatenate((decodes.counts, chunks.counts)),
            grown=decodes.grown,
            admitted=chunks.admitted,
        )

    def decoding(self, model: ModelState) -> TableRows:
        """Return idle sequences whose next token may be decoded, ascending; not to be written."""
        return self._mine(model, model.running.idle_decoding())

    def _prefilling(self, model: ModelState) -> TableRows:
        return self._mine(model, model.running.idle_prefilling())

    def _mine(self, model: ModelState, rows: TableRows) -> TableRows:
        if self._only is None:
            return rows
        at = model.running.at
        is_mine = [at(row).request.service_class is self._only for row in rows.tolist()]
        return rows[np.array(is_mine, dtype=np.bool_)]

    def _head(self, model: ModelState) -> LiveRequest | None:
        waiting = model.waiting
        return waiting.head if self._only is None else waiting.by_class[self._only].head

    def _decodes(self, model: ModelState, now: float, phase: Phase, max_steps: int) -> Batch:
        """All idle decoding sequences, the most senior ones where they are too many."""
        table, rows = model.running, self.decoding(model)
        max_rows, max_tokens = self._limits.max_decode_rows, self._limits.most_tokens(phase)
        fitting = table.within(model.fitting(rows[:max_rows]), max_tokens)
        if len(fitting) < len(rows):
            first = model.fitting(table.by_seniority(rows)[:max_rows])
            rows = np.sort(table.within(first, max_tokens, least=1))
        return decode_batch(self._memory, model, rows, now, max_steps)

    def _chunks(self, model: ModelState, budget: int) -> Batch:
        table = model.running
        rows: list[int] = []
        counts: list[int] = []
        admitted: list[int] = []

        def take(row: int) -> None:
            nonlocal budget
            count = min(budget, int(table.num_tokens[row] - table.num_computed[row]))
            rows.append(row)
            counts.append(count)
            budget -= count

        for row in self._prefilling(model).tolist():
            if budget == 0:
                break
            take(row)
        while budget and (head := self._head(model)):
            if not self._memory.admit(model, head):
                break
            assert head.row is not None
            admitted.append(head.row)
            take(head.row)
        return Batch(
            np.array(rows, dtype=np.int32), np.array(counts, dtype=np.int32), admitted=admitted
        )


class FcfsPacking(PriorityPacking):
    """Strict order of arrival, blind to class and priority; the latest is preempted first.

    Continuous batching as vLLM does it by default.
    """

    is_class_blind = True


def decode_batch(
    memory: Memory, model: ModelState, rows: TableRows, now: float, max_steps: int
) -> Batch:
    """Decode `rows`, as far as memory goes, for `max_steps` steps where they all last so long."""
    table = model.running
    if len(rows) == 0:
        return Batch(rows, rows)
    steps = max_steps
    if steps > 1:
        left = table.max_total[rows] - table.num_tokens[rows]
        steps = min(steps, int(left.min()))
    # One step more than one is worth no preemption.
    lengths = table.num_tokens[rows]
    grown = memory.try_grow(model, rows, lengths + np.int32(steps - 1))
    if grown is None:
        steps = 1
        rows, grown = memory.grow(model, rows, lengths, now)
    return Batch(rows, table.uncomputed(rows), grown, max_steps=steps)
