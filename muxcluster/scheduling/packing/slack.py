"""How long a job may take before an interactive request misses a target that it could meet."""

import math
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Phase
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.arrivals import ArrivalBounds
from muxcluster.scheduling.packing.batch import Draft, Turn
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.steptime.line import JobWork, decode_work
from muxcluster.scheduling.steptime.model import StepTimes

# Beside interactive rows without targets, or all too late for them, batch rows lengthen a job by so
# much of it: nothing else says what they bear.
_UNBOUND = 0.5

# Beside batch rows, interactive ones save so many tokens' worth of time, by so much at each token.
_RESERVE, _SAVED = 1.0, 0.2

_WHOLE = 0.999  # a job on less of the SMs runs beside others, which it hardly slows down


class _Step(NamedTuple):
    """What the interactive sequences of a model that decode wait for: their next step."""

    model: ModelState
    seconds: float  # predicted, without batch rows


class Slack:
    """Bounds on the time of a job, from the next tokens due of all sequences that wait for it.

    A request that is too late already sets no bound (BROS Alg. 1: reachable targets only).
    """

    def __init__(self, memory: Memory, times: StepTimes, token_budget: int) -> None:
        """token_budget: of a job."""
        self._memory = memory
        self._token_budget = token_budget
        self._models = memory.models
        self._times = times
        self._arrivals = ArrivalBounds(times)
        self._works: dict[str, tuple[TableRows, int, JobWork]] = {}

    def for_prompts(self, draft: Draft, turn: Turn) -> float:
        """Return the seconds the job may take with interactive prompts in it; inf: no bound.

        Targets are of the mean over tokens: rows that were early may wait for as long, and all of
        them for a part of a token's time, which makes their next one due earlier.
        """
        least_s = math.inf
        if draft.num_decodes:
            least_s = _least(_slacks(draft.model, turn.now), draft.seconds)
        if turn.share < _WHOLE:
            return least_s
        for model, step_s in self._steps(draft, turn):
            if model.running.has_targets:
                least_s = min(least_s, _least(_slacks(model, turn.now + step_s), 0.0))
        return least_s

    def for_batch(self, draft: Draft, turn: Turn, phase: Phase) -> float:
        """Return the seconds the job may take with batch rows in it; inf: no bound.

        A job mostly reads weights and would waste that on few rows, so batch rows may lengthen it
        until the next token is due, but the credit of early rows is not used. Due are tokens of
        rows in the job and of those that wait for it, first tokens of prompts in the job, of
        prompts that wait, and of requests that come while it runs. What is due must be met by a job
        that overruns its prediction as most do (`StepTimes.margins`), beside as many others as now.
        """
        alone_s, name = draft.seconds, draft.model.name
        margins, factor = (
            self._times.margins(name),
            self._times.beside(name, phase, turn.num_beside),
        )
        token, first_token = margins.token * factor, margins.first_token * factor
        in_job_s = self._until_prompts(draft, turn, first_token)
        if draft.num_decodes:
            in_job_s = min(in_job_s, _rows_due(draft.model, turn.now, alone_s) / token)
        limit_s = min(in_job_s, self._until_others(draft, turn, phase, (token, first_token)))
        if draft.num_interactive and in_job_s == math.inf:
            limit_s = min(limit_s, alone_s * (1.0 + _UNBOUND))
        return max(alone_s, limit_s)

    def _until_prompts(self, draft: Draft, turn: Turn, margin: float) -> float:
        """Return how long the job may take with its prompts' first tokens in time.

        What the rest of a prompt takes in later jobs is left for these.
        """
        table, least_s = draft.model.running, math.inf
        for row, count in draft.prompts:
            live = table.at(row)
            if not _may_be_in_time(live, turn.now):
                continue
            start = int(table.num_computed[row]) + count
            rest = JobWork().with_prompt(start, int(table.num_tokens[row]) - start)
            rest_s = self._times.of(draft.model.name, turn.share).job_s(rest)
            least_s = min(least_s, (live.deadline_s - turn.now) / margin - rest_s)
        return least_s

    def _until_others(
        self, draft: Draft, turn: Turn, phase: Phase, margins: tuple[float, float]
    ) -> float:
        """Return how long a job may take with those in time who wait for it, or will come.

        On a part of the SMs only a prefill keeps others waiting: there is one at a time.
        margins: of tokens and of first tokens.
        """
        is_whole, (token, first_token) = turn.share >= _WHOLE, margins
        if not is_whole and phase is not Phase.PREFILL:
            return math.inf
        steps = self._steps(draft, turn) if is_whole else []
        # Who runs first is not known here: each may have to wait for all others.
        step_s = {step.model.name: step.seconds for step in steps}
        between_s, least_s = sum(step_s.values()), math.inf
        for model in self._models:
            mine_s = step_s.get(model.name, 0.0)
            if mine_s:
                found_s = _rows_due(model, turn.now, draft.seconds + between_s) / token
                least_s = min(least_s, found_s - between_s)
            rows_s = draft.seconds_of_decodes if model is draft.model else mine_s
            others_s = between_s - mine_s
            found_s = self._arrivals.wait_s(model, draft, turn, rows_s, first_token) - others_s
            if model is not draft.model or phase is Phase.DECODE:
                found_s = min(found_s, self._until_waiting(model, turn, others_s, first_token))
            least_s = min(least_s, found_s)
        return least_s

    def _until_waiting(
        self, model: ModelState, turn: Turn, between_s: float, margin: float
    ) -> float:
        """Return how long the prompts of `model` that wait may go on waiting and be in time.

        Those that are due first go first, in as many jobs as they need. between_s: what others run
        before each of these.
        """
        prompts = [each for each in self._prompts(model) if _may_be_in_time(each[0], turn.now)]
        if not prompts:
            return math.inf
        times, rows = self._times.of(model.name, turn.share), self._decoding(model)
        room = max(1.0, self._token_budget - rows.num_rows)
        work, least_s = rows, math.inf
        for live, start in sorted(prompts, key=lambda each: each[0].deadline_s):
            work = work.with_prompt(start, live.num_tokens - start)
            more = math.ceil(work.num_tokens / room) - 1  # jobs, after the first one
            rest_s = times.job_s(work) + more * (times.job_s(rows) + between_s)
            least_s = min(least_s, (live.deadline_s - turn.now) / margin - rest_s)
        return least_s - between_s

    def _prompts(self, model: ModelState) -> list[tuple[LiveRequest, int]]:
        """Return the interactive prompts that wait for nothing but jobs.

        Each with how many of its tokens are computed.
        """
        table, memory = model.running, self._memory
        queue = model.waiting.by_class[ServiceClass.INTERACTIVE]
        found = []
        if (
            queue.head is not None
            and not memory.owes_interactive
            and memory.may_admit(model, queue.head)
        ):
            found = [(live, 0) for live in islice(queue, table.num_open)]
        rows = table.idle_prefilling()
        if len(rows):
            urgent = rows[~table.is_batch[rows]].tolist()
            found += [(table.at(row), int(table.num_computed[row])) for row in urgent]
        return found

    def _steps(self, draft: Draft, turn: Turn) -> list[_Step]:
        """Return what waits for the job: of its own model only where no row of that is in it."""
        found = []
        for model in self._models:
            if model is draft.model and draft.num_decodes:
                continue
            work = self._decoding(model)
            if work.num_rows:
                found.append(_Step(model, self._times.of(model.name, turn.share).job_s(work)))
        return found

    def _decoding(self, model: ModelState) -> JobWork:
        """Return the next step of all idle interactive sequences, kept while they stay idle."""
        table = model.running
        rows = table.idle_decoding()
        if len(rows) == 0:
            return JobWork()
        # The table may return the array it had before a job, in which every row has grown.
        first = int(table.num_computed[rows[0]])
        kept = self._works.get(model.name)
        if kept is not None and kept[0] is rows and kept[1] == first:
            return kept[2]
        urgent = rows[~table.is_batch[rows]] if table.num_batch else rows
        work = JobWork().with_rows(
            *decode_work(table.num_computed[urgent], table.uncomputed(urgent))
        )
        self._works[model.name] = rows, first, work
        return work


def _rows_due(model: ModelState, now: float, cycle_s: float) -> float:
    """Return the seconds until the next tokens of the model's idle sequences are due; inf: never.

    They are due a part earlier until a row has saved some time, which prompts then use that come in
    a burst. cycle_s: seconds from token to token without batch rows. A row that was late is due at
    once until it has caught up, unless its target for each token is shorter than that: then it
    never will.
    """
    table = model.running
    if table.first_deadline_s() == math.inf:
        return math.inf
    rows = table.idle_decoding()
    rows = rows[(cycle_s <= table.tpot_s[rows]) & (table.tpot_s[rows] < math.inf)]
    tpot_s = table.tpot_s[rows]
    missing_s = np.maximum(0.0, _RESERVE * tpot_s - table.credit_s[rows])
    due_s = table.deadline_s[rows] - now - np.minimum(missing_s, _SAVED * tpot_s)
    return float(due_s.min(initial=math.inf))


def _slacks(model: ModelState, now: float) -> NDArray[np.float64]:
    """Of the model's idle decoding sequences, to their next tokens, what they earned included."""
    table = model.running
    rows = table.idle_decoding()
    slacks_s: NDArray[np.float64] = table.deadline_s[rows] + table.leeway_s(rows) - now
    return slacks_s


def _least(slacks_s: NDArray[np.float64], reachable_s: float) -> float:
    return float(slacks_s[slacks_s >= reachable_s].min(initial=math.inf))


def _may_be_in_time(live: LiveRequest, now: float) -> bool:
    return now <= live.deadline_s < math.inf


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
