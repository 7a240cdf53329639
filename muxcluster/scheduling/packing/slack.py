"""How long a job may take before an interactive request misses a target it could still meet."""

import math
from collections.abc import Sequence

import numpy as np

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.modelstate import ModelState
from muxcluster.scheduling.packing.batch import Turn
from muxcluster.scheduling.packing.draft import Draft
from muxcluster.scheduling.prediction import StepTimes
from muxcluster.scheduling.slots import Slots

_MARGIN = 0.8
"""Batch rows use so much of the slack at most: predictions are not exact."""
_UNBOUND = 0.5
"""Beside interactive rows without targets, or all late, batch rows lengthen a job by so much."""
_IDLE = 0.25
"""Where no interactive request is here, batch jobs take so much of the TTFT target that one may
come with."""
_WHOLE = 0.999
"""A job on less of the SMs runs beside others, which it hinders little."""


class Slack:
    """Bounds on the time of a job, from the next token due of everybody who would wait for it.

    A request that is too late already binds nobody (BROS Alg. 1: reachable targets only).
    """

    def __init__(self, models: Sequence[ModelState], times: StepTimes, stretch: float) -> None:
        """stretch: by how many times its time batch rows may lengthen a job."""
        self._models = models
        self._times = times
        self._stretch = stretch
        self._contexts: dict[str, tuple[Slots, int, int]] = {}
        targets = [model.spec.slo.ttft_s for model in models if model.spec.slo is not None]
        self._idle_s = _IDLE * min(targets, default=math.inf)

    def for_prompts(self, draft: Draft, turn: Turn) -> float:
        """Seconds the job may take with interactive prompts in it; inf where nobody waits.

        Rows that were early may be kept waiting for so long: targets are of the mean over tokens.
        """
        return min(self._of_rows(draft, turn.now, 1.0), self._of_others(draft, turn, 1.0))

    def for_batch(self, draft: Draft, turn: Turn) -> float:
        """Seconds the job may take with batch rows in it.

        A step mostly reads weights and would waste that on few rows, so batch rows may lengthen it,
        but not beyond the targets of those who wait for it; what these have earned is not theirs.
        """
        alone_s = draft.seconds
        most_s = min(self._of_rows(draft, turn.now, 0.0), self._of_others(draft, turn, 0.0))
        most_s = min(most_s, self._of_waiting(draft, turn))
        if most_s == math.inf and not draft.num_interactive:
            return self._idle_s
        if not alone_s:
            return most_s
        if most_s == math.inf:
            return alone_s * (1.0 + min(self._stretch, _UNBOUND))
        slack_s = max(0.0, most_s - alone_s)
        return alone_s + min(self._stretch * alone_s, _MARGIN * slack_s)

    def _of_rows(self, draft: Draft, now: float, credit: float) -> float:
        """Of the rows that decode in the job. credit: part of what they have earned that counts."""
        if not draft.num_decodes:
            return math.inf
        table = draft.model.slots
        alone_s = draft.seconds
        first_s = table.first_deadline_s() - now
        if not credit and first_s >= alone_s:
            return first_s
        rows = table.idle_decoding()
        slack_s = table.deadline_s[rows] - now + credit * table.credit_s[rows]
        return float(slack_s[slack_s >= alone_s].min(initial=math.inf))

    def _of_others(self, draft: Draft, turn: Turn, credit: float) -> float:
        """Of those that could decode now and must wait until the job has ended."""
        least_s = math.inf
        if turn.share < _WHOLE:
            return least_s
        for model in self._models:
            table = model.slots
            if not table.has_targets or (model is draft.model and draft.num_decodes):
                continue
            first_s = table.first_deadline_s()
            if first_s == math.inf:
                continue
            rows = table.idle_decoding()
            context = self._context(model, rows)
            step_s = self._times.decode_s(model.name, turn.share, len(rows), context)
            slack_s = first_s - turn.now - step_s
            if credit or slack_s < 0:
                slacks = table.deadline_s[rows] - turn.now - step_s + credit * table.credit_s[rows]
                slack_s = float(slacks[slacks >= 0].min(initial=math.inf))
            least_s = min(least_s, slack_s)
        return least_s

    def _of_waiting(self, draft: Draft, turn: Turn) -> float:
        """Of the next interactive request of each other model, to its first token."""
        least_s = math.inf
        for model in self._models:
            head = model.waiting.by_class[ServiceClass.INTERACTIVE].head
            if model is draft.model or head is None:
                continue
            num_tokens = head.num_tokens
            job_s = self._times.prefill_s(model.name, 1.0, num_tokens, num_tokens**2 / 2)
            slack_s = head.deadline_s - turn.now - job_s
            if slack_s >= 0:
                least_s = min(least_s, slack_s)
        return least_s

    def _context(self, model: ModelState, rows: Slots) -> int:
        """Tokens that all idle `rows` attend to, kept while they stay idle.

        The table may return the array it had before a job, in which every row has grown.
        """
        first = int(model.slots.num_computed[rows[0]])
        kept = self._contexts.get(model.name)
        if kept is not None and kept[0] is rows and kept[1] == first:
            return kept[2]
        context = int(np.add.reduce(model.slots.num_computed[rows])) + len(rows)
        self._contexts[model.name] = rows, first, context
        return context
