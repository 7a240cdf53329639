"""What a lane sees of the scheduler, and the few things it may do."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase, TableDelta
from muxcluster.scheduling.jobs import JobBuilder
from muxcluster.scheduling.packing.batch import Batch, Packing, Turn
from muxcluster.scheduling.shares import Place, ShareLedger
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepCost


class LaneView:
    """Facts about models and shares, and `launch`.

    A lane decides which model and phase goes to which place; who is in the job is the packing's
    business, and memory is asked only through it.
    """

    def __init__(
        self,
        models: Sequence[ModelState],
        shares: ShareLedger,
        packing: Packing,
        builder: JobBuilder,
        cost: StepCost | None,
    ) -> None:
        self.models = tuple(models)
        self.shares = shares
        self._packing = packing
        self._builder = builder
        self._cost = cost
        self._num_launches = dict.fromkeys(Phase, 0)
        self._last: dict[tuple[str, Phase], int] = {}

    def launch(self, model: ModelState, phase: Phase, place: Place, now: float) -> Job | None:
        """Start a job of `model` at `place`; None where memory lets no row of it run now."""
        batch = self._pack(model, phase, Turn(now, place.share, self._builder.next_id))
        if len(batch) == 0:
            return None
        job = self._builder.build(model, phase, place, batch, now)
        self.shares.start(job, now)
        self._count(job)
        return job

    def follow(
        self,
        job: Job,
        model: ModelState,
        slots: NDArray[np.int32],
        starts: NDArray[np.int32],
        grown: TableDelta,
    ) -> Job:
        """Send what follows a running job, as JobBuilder makes it; it counts as launched."""
        follower = self._builder.follow(job, model, slots, starts, grown)
        self.shares.follow(follower)
        self._count(follower)
        return follower

    def _count(self, job: Job) -> None:
        self._num_launches[job.phase] += 1
        self._last[job.model, job.phase] = self._num_launches[job.phase]

    def skip(self, launches: Sequence[tuple[Job, int]]) -> int:
        """Count launches that only repeated running jobs; the id of the first one.

        launches: each job, and the number of its last launch among them all, from 0; -1: none.
        """
        num_launches = 1 + max(order for _, order in launches)
        for job, order in launches:
            if order >= 0:
                self._last[job.model, job.phase] = self._num_launches[job.phase] + order + 1
        self._num_launches[Phase.DECODE] += num_launches
        return self._builder.skip(num_launches)

    def _pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        if phase is Phase.PREFILL:
            return self._packing.prefill(model, turn)
        if phase is Phase.DECODE:
            return self._packing.decode(model, turn)
        return self._packing.mixed(model, turn)

    def has_prefill_work(self, model: ModelState) -> bool:
        """True where a request waits or a prompt is not fully computed (and in no job)."""
        table = model.slots
        return table.num_lent > 0 or len(model.waiting) > 0 or len(table.idle_prefilling()) > 0

    def has_decode_work(self, model: ModelState) -> bool:
        """True where a sequence could decode its next token, or wants to be restored for it."""
        return model.slots.num_lent > 0 or len(model.slots.idle_decoding()) > 0

    def may_prefill(self, model: ModelState) -> bool:
        """True where a prefill of `model` waits for nothing but a place."""
        return self._packing.may_prefill(model)

    def could_prefill(self) -> bool:
        """True where a prefill of some model waits for nothing but a place."""
        return any(self.has_prefill_work(m) and self.may_prefill(m) for m in self.models)

    def decodes_all(self, model: ModelState) -> bool:
        """True where whoever decodes in `model` is in its decode jobs, as long as there is room."""
        return self._packing.decodes_all(model)

    def decode_pressure(self) -> float:
        """How far decodes rather than prompts hold the unit back, 0 to 1.

        0: hardly any KV is held, so a request that waits, waits for its prefill; or full prefill
        jobs wait. 1: half of the pool or more is held, and nobody waits for a prefill.
        """
        fullness = min(1.0, self._packing.backlog(self.models))
        return min(1.0, 2 * self._packing.pool_use()) * (1.0 - fullness)

    def decode_rows(self, model: ModelState) -> int:
        """Sequences that decode, or could."""
        jobs = self.shares.running
        running = sum(
            len(job.rows) for job in jobs if job.phase is Phase.DECODE and job.model == model.name
        )
        return running + len(model.slots.idle_decoding()) + model.slots.num_lent

    def last_turn(self, model: ModelState, phase: Phase) -> int:
        """When `model` last ran `phase`, as the number of that launch; 0 for never."""
        return self._last.get((model.name, phase), 0)

    def num_launches(self, phase: Phase) -> int:
        """Jobs of `phase` launched so far."""
        return self._num_launches[phase]

    def prefill_slack_s(self, model: ModelState, now: float) -> float:
        """Seconds until the most urgent prompt that can still make it must start; inf: none."""
        table = model.slots
        slots = table.idle_prefilling()
        head = model.waiting.head
        cost_s = 0.0
        if self._cost is not None:
            num_tokens = int((table.num_tokens[slots] - table.num_computed[slots]).sum())
            num_tokens += 0 if head is None else head.num_tokens
            cost_s = self._cost.prefill_s(model.name, 1.0, num_tokens)
        slack_s = math.inf if head is None else head.deadline_s - now - cost_s
        of_head_s = slack_s if slack_s >= 0 else math.inf
        if len(slots) == 0:
            return of_head_s
        return min(of_head_s, _least(table.deadline_s[slots] - now - cost_s))

    def decode_slack_s(self, model: ModelState, now: float) -> float:
        """Seconds until the most urgent sequence that can still make it must decode; inf: none."""
        table = model.slots
        cost_s = 0.0
        if self._cost is not None:
            cost_s = self._cost.decode_s(model.name, 1.0, len(table.idle_decoding()))
        slack_s = table.first_deadline_s() - now - cost_s
        if slack_s >= 0:
            return slack_s
        # Only where the first is late already must all be looked at.
        return _least(table.deadline_s[table.idle_decoding()] - now - cost_s)


def _least(slacks: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The smallest slack that is not negative: what is late already binds nobody."""
    return float(slacks[slacks >= 0].min(initial=math.inf))


class Lane(Protocol):
    """Decides which model and phase runs next on which SM share.

    uses_quotas: whether block quotas are in force; without them every model may use the pool.
    phases: what the workers must be able to run.
    """

    uses_quotas: bool
    phases: frozenset[Phase]

    def next_jobs(self, view: LaneView, now: float) -> list[Job]:
        """Launch what can run now; empty where the next thing to do waits for a running job.

        Must launch something where no job runs and some row of some model can.
        """
        ...

    def repeats(self, view: LaneView, jobs: Sequence[Job]) -> bool:
        """True where each of `jobs`, which decode all there is of their models, would be launched
        at the same place again if it ended now, and again after that: see repeating.py.
        """
        ...

    def may_follow(self, view: LaneView, job: Job) -> bool:
        """True where a running job, all of whose rows decode, would be launched at the same place
        again if it ended now. Nobody waits who could decode: see following.py.
        """
        ...

    def turns(self, view: LaneView) -> Sequence[ModelState]:
        """Models that decode in turn after the one that decodes now, the next one first.

        Each that has had its turn goes to the back, at the same place; empty where a lane does not
        hand one place around.
        """
        ...
