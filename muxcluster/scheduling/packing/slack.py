"""How long a job may take before an interactive request misses a target that it could meet."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.packing.batch import Draft, Turn
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.steptime.model import StepTimes

_MARGIN = 0.7  # of the slack, batch rows use so much at most: predictions are not exact

# Beside interactive rows without targets, or all late, batch rows lengthen a job by so much.
_UNBOUND = 0.5

# Where no interactive request is here, one may come: batch jobs take so much of the TTFT target.
_IDLE = 0.25

# Of its TTFT target, an interactive request waits so long before batch rows delay it no longer.
_PATIENCE = 0.25

_WHOLE = 0.999  # a job on less of the SMs runs beside others, which it hardly slows down


class Slack:
    """Bounds on the time of a job, from the next tokens due of all sequences that wait for it.

    A request that is too late already sets no bound (BROS Alg. 1: reachable targets only).
    """

    def __init__(self, models: Sequence[ModelState], times: StepTimes, stretch: float) -> None:
        """stretch: by how many times its time batch rows may lengthen a job."""
        self._models = models
        self._times = times
        self._stretch = stretch
        self._contexts: dict[str, tuple[TableRows, int, int]] = {}
        targets = [model.spec.slo.ttft_s for model in models if model.spec.slo is not None]
        self._idle_s = _IDLE * min(targets, default=math.inf)

    def for_prompts(self, draft: Draft, turn: Turn) -> float:
        """Return the seconds the job may take with interactive prompts in it; inf: no bound.

        Targets are of the mean over tokens: rows that were early may wait for as long, and all of
        them for a part of a token's time, which makes their next one due earlier.
        """
        return min(
            self._of_rows(draft, turn.now, borrows=True),
            self._of_others(draft, turn, borrows=True),
        )

    def for_batch(self, draft: Draft, turn: Turn) -> float:
        """Return the seconds the job may take with batch rows in it.

        A step mostly reads weights and would waste that on few rows, so batch rows may lengthen it,
        but not beyond the targets of the requests that wait for it; the credit of these is not
        used. They do not lengthen it at all where a request has waited long for its first token.
        """
        alone_s = draft.seconds
        if alone_s and self._is_hurried(draft, turn):
            return alone_s
        most_s = min(
            self._of_rows(draft, turn.now, borrows=False),
            self._of_others(draft, turn, borrows=False),
        )
        most_s = min(most_s, self._of_waiting(draft, turn))
        if most_s == math.inf and not draft.num_interactive:
            return self._idle_s
        if not alone_s:
            return most_s
        if most_s == math.inf:
            return alone_s * (1.0 + min(self._stretch, _UNBOUND))
        slack_s = max(0.0, most_s - alone_s)
        return alone_s + min(self._stretch * alone_s, _MARGIN * slack_s)

    def _is_hurried(self, draft: Draft, turn: Turn) -> bool:
        """True where a prompt in the job, or one of another model that is next, has waited long."""
        table = draft.model.running
        if any(_has_waited(table.at(row), turn.now) for row in draft.prompts):
            return True
        if turn.share < _WHOLE:
            return False
        for model in self._models:
            if model is draft.model or not (model.waiting or model.running.num_prefilling):
                continue
            if any(_has_waited(live, turn.now) for live in _first_prompts(model)):
                return True
        return False

    def _of_rows(self, draft: Draft, now: float, *, borrows: bool) -> float:
        """Of the rows that decode in the job. borrows: what they have earned counts, and a debt."""
        if not draft.num_decodes:
            return math.inf
        table = draft.model.running
        alone_s = draft.seconds
        first_s = table.first_deadline_s() - now
        if not borrows and first_s >= alone_s:
            return first_s
        slack_s = _slacks(draft.model, now, borrows=borrows)
        return float(slack_s[slack_s >= alone_s].min(initial=math.inf))

    def _of_others(self, draft: Draft, turn: Turn, *, borrows: bool) -> float:
        """Of those that could decode now and must wait until the job has ended."""
        least_s = math.inf
        if turn.share < _WHOLE:
            return least_s
        for model in self._models:
            table = model.running
            if not table.has_targets or (model is draft.model and draft.num_decodes):
                continue
            first_s = table.first_deadline_s()
            if first_s == math.inf:
                continue
            rows = table.idle_decoding()
            context = self._context(model, rows)
            step_s = self._times.of(model.name, turn.share).decode_s(len(rows), context)
            slack_s = first_s - turn.now - step_s
            if borrows or slack_s < 0:
                slacks = _slacks(model, turn.now + step_s, borrows=borrows)
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
            job_s = self._times.of(model.name, 1.0).prefill_s(num_tokens, num_tokens**2 / 2)
            slack_s = head.deadline_s - turn.now - job_s
            if slack_s >= 0:
                least_s = min(least_s, slack_s)
        return least_s

    def _context(self, model: ModelState, rows: TableRows) -> int:
        """Tokens that all idle `rows` attend to, kept while they stay idle."""
        # The table may return the array it had before a job, in which every row has grown.
        first = int(model.running.num_computed[rows[0]])
        kept = self._contexts.get(model.name)
        if kept is not None and kept[0] is rows and kept[1] == first:
            return kept[2]
        context = int(np.add.reduce(model.running.num_computed[rows])) + len(rows)
        self._contexts[model.name] = rows, first, context
        return context


def _slacks(model: ModelState, now: float, *, borrows: bool) -> NDArray[np.float64]:
    """Of the model's idle decoding sequences, to their next tokens."""
    table = model.running
    rows = table.idle_decoding()
    slack_s: NDArray[np.float64] = table.deadline_s[rows] - now
    if borrows:
        slack_s += table.leeway_s(rows)
    return slack_s


def _first_prompts(model: ModelState) -> list[LiveRequest]:
    """The next interactive request that there is a row for, and those with prompt left there."""
    table = model.running
    head = model.waiting.by_class[ServiceClass.INTERACTIVE].head
    found = [] if head is None or not table.num_free else [head]
    prefilling = table.idle_prefilling()
    if len(prefilling):
        found += [table.at(row) for row in prefilling[~table.is_batch[prefilling]].tolist()]
    return found


def _has_waited(live: LiveRequest, now: float) -> bool:
    """Return True where it has waited long and the first token may still be in time."""
    if live.slo is None or live.has_sampled:
        return False
    return _PATIENCE * live.slo.ttft_s <= now - live.added_s <= live.slo.ttft_s


class Ageing:
    """How long the batch work of each model has waited for a job: it gets a row now and then."""

    def __init__(self, ageing_s: float) -> None:
        """ageing_s: after so many seconds a batch row runs whatever the targets say, and after
        twice as many no interactive request is admitted before batch work found memory.
        """
        self._ageing_s = ageing_s
        self._since_s: dict[str, float] = {}

    def note(self, model: ModelState, num_batch: int, now: float) -> None:
        """Note that a job starts with so many batch rows, or finds nothing to run."""
        name = model.name
        if num_batch or not model.has_batch_work:
            self._since_s.pop(name, None)
        else:
            self._since_s.setdefault(name, now)

    def is_overdue(self, model: ModelState, now: float) -> bool:
        """True where batch work must be in the next job."""
        return now - self._since_s.get(model.name, now) >= self._ageing_s

    def is_starved(self, model: ModelState, now: float) -> bool:
        """True where that has not helped, because memory is short."""
        return now - self._since_s.get(model.name, now) >= 2 * self._ageing_s
