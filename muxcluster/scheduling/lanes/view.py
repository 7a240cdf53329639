"""What a lane sees of the scheduler, and what it proposes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.lanes.division import Division, Sharer
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Packing
from muxcluster.scheduling.shares import Place, ShareLedger
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes

# Part of the pool that is held from which on memory, not the prefill, is what prompts wait for; and
# up to which it is the prefill alone. How many prompts wait makes no difference (design.md §2).
_HELD, _HARDLY_HELD = 2 / 3, 1 / 3

_MOST_WAITED = 8  # launches for which a model with batch work alone lets others go first


class Proposal(NamedTuple):
    """A job that a lane asks for; the packing decides which sequences are in it."""

    model: ModelState
    phase: Phase
    place: Place


@dataclass(frozen=True, slots=True)
class Repetition:
    """A job that ended `count` times and was launched again unchanged."""

    job: Job
    count: int
    order: int  # of its last launch among those of all repetitions, from 0; -1: it had none
    start_s: float  # of that launch, where it runs
    end_s: float  # when it ended last
    running_s: float  # of the jobs that ended, together
    is_running: bool


class LaneView:
    """Facts about models, shares and launches so far."""

    def __init__(
        self,
        memory: Memory,
        shares: ShareLedger,
        packing: Packing,
        times: StepTimes,
        token_budget: int,
    ) -> None:
        """times: predictions. token_budget: of a prefill job."""
        self.division = Division(shares, times)
        self.models = tuple(memory.models)  # that may have jobs: those that are resident
        self.shares = shares
        self.last_phase: Phase | None = None  # of the last launch
        self._memory = memory
        self._packing = packing
        self._token_budget = token_budget
        self._num_launches = dict.fromkeys(Phase, 0)
        self._last: dict[tuple[str, Phase], int] = {}
        self._ended_rows: Mapping[str, int] = {}

    def count(self, job: Job) -> None:
        """`job` was launched."""
        self.last_phase = job.phase
        self._num_launches[job.phase] += 1
        self._last[job.model, job.phase] = self._num_launches[job.phase]

    def count_repeated(self, launches: Sequence[tuple[Job, int]]) -> int:
        """Count launches that only repeated running jobs; return how many there were.

        launches: each job, and the number of its last launch among them all, from 0; -1: none. All
        are of one phase; at least one.
        """
        phase = launches[0][0].phase
        before, num_launches = self._num_launches[phase], 0
        for job, order in launches:
            if order >= 0:
                self.last_phase = phase
                self._last[job.model, phase] = before + order + 1
                num_launches = max(num_launches, order + 1)
        self._num_launches[phase] += num_launches
        return num_launches

    def without(self, job: Job) -> "LaneView":
        """Return the view as it would be if `job` ended now, all of its rows left to decode.

        Good for questions only, until something changes.
        """
        view = copy(self)
        view.shares = self.shares.without(job)
        view._ended_rows = {job.model: len(job.rows)}
        return view

    def has_prefill_work(self, model: ModelState) -> bool:
        """True where a request waits or a prompt is not fully computed (and in no job)."""
        table = model.running
        if table.num_lent > 0 or model.waiting.has_open or len(table.idle_prefilling()) > 0:
            return True
        return table.num_suspects > 0 and len(table.idle_suspects(are_prefilling=True)) > 0

    def has_decode_work(self, model: ModelState) -> bool:
        """True where a sequence could decode its next token, or must be restored for it."""
        table = model.running
        if table.num_lent > 0 or len(table.idle_decoding()) > 0:
            return True
        if table.num_suspects and len(table.idle_suspects(are_prefilling=False)):
            return True
        return model.name in self._ended_rows

    def may_prefill(self, model: ModelState) -> bool:
        """True where a prefill of `model` waits for nothing but a place."""
        return self._packing.may_prefill(model)

    def is_awaited(self, model: ModelState) -> bool:
        """True where an interactive request of `model` waits for its prompt's next job alone.

        One that has no room yet waits for others to end, and their jobs bring that about.
        """
        table = model.running
        if model.waiting.by_class[ServiceClass.INTERACTIVE].head is not None:
            return self._packing.may_prefill(model)
        rows = table.idle_prefilling()
        return len(rows) > 0 and not table.is_batch[rows].all()

    def may_wait(self, model: ModelState, phase: Phase) -> bool:
        """True where `model` has batch work alone, and had a job of `phase` not long ago."""
        if self._packing.is_class_blind or model.waiting.num_interactive:
            return False
        if self._num_launches[phase] - self.last_turn(model, phase) >= _MOST_WAITED:
            return False
        return model.running.num_live == model.running.num_batch

    @property
    def has_waiting_work(self) -> bool:
        """True where sequences decode in no job, or a prefill could run and none does."""
        if any(map(self.has_decode_work, self.models)):
            return True
        running = self.shares.running
        if any(job.phase is not Phase.DECODE for job in running):
            return False
        return any(self.has_prefill_work(m) and self.may_prefill(m) for m in self.models)

    def prefill_urgency(self) -> float:
        """How far prompts rather than decodes hold the unit back, 0 to 1.

        1: a third of the pool or less is held, so that a request waits for its prefill. 0: two
        thirds are held, so that it waits for those that decode.
        """
        return min(1.0, max(0.0, (_HELD - self._memory.pool_use) / (_HELD - _HARDLY_HELD)))

    def _prompt_tokens(self, model: ModelState) -> int:
        """Return its prompt tokens to compute, those of its queue only where the first has room."""
        table, head = model.running, model.waiting.head
        num_tokens = 0
        if len(rows := table.idle_prefilling()):
            num_tokens = int((table.num_tokens[rows] - table.num_computed[rows]).sum())
        if head is not None and self._memory.has_room(model, head):
            num_tokens += model.waiting.num_tokens
        return num_tokens

    def decode_of(self, model: ModelState) -> Sharer:
        """The model's decodes, running or not, as one that shares the SMs."""
        return Sharer(model, Phase.DECODE, self._decode_rows(model))

    def prefill_of(self, model: ModelState) -> Sharer:
        """The prefill job that the model would have now."""
        return Sharer(model, Phase.PREFILL, min(self._token_budget, self._prompt_tokens(model)))

    def _decode_rows(self, model: ModelState) -> int:
        """Sequences that decode, or could."""
        jobs = self.shares.running
        running = sum(
            len(job.rows) for job in jobs if job.phase is Phase.DECODE and job.model == model.name
        )
        table = model.running
        idle = len(table.idle_decoding()) + table.num_lent
        idle += len(table.idle_suspects(are_prefilling=False))
        return running + idle + self._ended_rows.get(model.name, 0)

    def last_turn(self, model: ModelState, phase: Phase) -> int:
        """When `model` last ran `phase`, as the number of that launch; 0 for never."""
        return self._last.get((model.name, phase), 0)

    def num_launches(self, phase: Phase) -> int:
        """Jobs of `phase` launched so far."""
        return self._num_launches[phase]

    def prefill_slack_s(self, model: ModelState, now: float) -> float:
        """Seconds until the next deadline of a prompt that is not late; inf: none.

        0 where there are suspects: the others of a failed job wait for each of them.
        """
        if model.has_suspects:
            return 0.0
        table = model.running
        rows = table.idle_prefilling()
        head = model.waiting.head
        slack_s = math.inf if head is None else head.deadline_s - now
        of_head_s = slack_s if slack_s >= 0 else math.inf
        if len(rows) == 0:
            return of_head_s
        return min(of_head_s, _least(table.deadline_s[rows] - now))

    def decode_slack_s(self, model: ModelState, now: float) -> float:
        """Seconds until the next deadline of a sequence that decodes and is not late; inf: none.

        0 where there are suspects.
        """
        if model.has_suspects:
            return 0.0
        table = model.running
        slack_s = table.first_deadline_s() - now
        if slack_s >= 0:
            return slack_s
        # Only where the first is late already must all be looked at.
        return _least(table.deadline_s[table.idle_decoding()] - now)


def _least(slacks: NDArray[np.float64]) -> float:
    """Return the smallest slack that is not negative: what is late already binds no decision."""
    return float(slacks[slacks >= 0].min(initial=math.inf))


class Lane(Protocol):
    """Decides which model and phase runs next on which SM share."""

    uses_quotas: bool  # block quotas are in force; without them every model may use the pool
    phases: frozenset[Phase]  # what the workers must be able to run
    may_pipeline: bool  # what comes next may be decided before the job ends

    @property
    def takes_turns(self) -> bool:
        """Whether jobs that decode run at one place, models by their last turn, at any time."""
        ...

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """Yield jobs to launch now, in order; nothing where the next one waits for a running job.

        Between two of them the scheduler launches the first one, or not, where memory lets no row
        of it run: `view.shares` shows which. Must yield a job that can be launched where no job
        runs and some row of some model can. It changes nothing: a caller may launch none of them.
        """
        ...


def turns_before(lane: Lane, view: LaneView, job: Job) -> list[ModelState] | None:
    """Return the models that decode in turn after `job`, if it ended now, before it runs again.

    It runs again with the same rows, one token on, at the same place, like those before it. None
    where it would not, or where prompts could be computed. A dry run of the lane: nothing is
    launched. Time may change the order only where the lane does not take turns, and then the
    result is empty or None.
    """
    ended = view.without(job)
    proposals = list(lane.proposals(ended, 0.0))
    if any(each.phase is not Phase.DECODE and view.may_prefill(each.model) for each in proposals):
        return None
    place = Place(job.worker_id, job.share)
    again = [
        each
        for each in proposals
        if each.phase is not Phase.PREFILL and ended.has_decode_work(each.model)
    ]
    if any(each.phase is not job.phase or each.place != place for each in again):
        return None
    if not again or again[-1].model.name != job.model:
        return None
    return [each.model for each in again[:-1]]
