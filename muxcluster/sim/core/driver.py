"""Drives one unit's scheduler on a virtual clock, in the same order as the engine."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, Rejected, StepOutput
from muxcluster.core.job import DraftTokens, JobResult, Phase
from muxcluster.core.request import Request
from muxcluster.core.residency import Move, MoveKind
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.scheduling.steptime.seed import CostSeed, SeedModel
from muxcluster.sim.core.concurrency import Concurrency, Running
from muxcluster.sim.core.fast_forward import FastForward
from muxcluster.sim.core.timing import HOST_LINK, CostTiming, Timing
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.requests import TOKENS

_MIN_WAIT_S = 0.001  # as in the engine: a wake-up in the past must not make the loop spin


# Returns requests that come now by themselves; called again until there are none.
Feed = Callable[[UnitScheduler, float], Sequence[Request]]


class Sink(Protocol):
    """Receives what happens in a unit."""

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request got a token from a job that computes prompts."""
        ...

    def end(self, event: Finished | Rejected, now: float) -> None:
        """Note that a request has ended."""
        ...

    def launched(self, driver: "UnitDriver", entries: Sequence[Running]) -> None:
        """Note that jobs started at `driver.now`."""
        ...

    def ran(self, driver: "UnitDriver", entry: Running) -> None:
        """Note that a job ended at `driver.now`."""
        ...


class UnitDriver:
    """One `UnitScheduler` and its running jobs.

    At each moment the order is that of `engine.unit.Unit`: complete jobs and moves of weights that
    end one by one, add requests, then call `next_moves` and `next_jobs` once. A wake takes the
    seconds that the specification of its model says, or as long as its bytes take from host memory;
    a park takes none, as host memory keeps the weights. Jobs are not slowed by either.
    """

    def __init__(
        self,
        unit: SimUnit,
        sink: Sink,
        timing: Timing | None = None,
        *,
        exact: bool = True,
        feed: Feed | None = None,
    ) -> None:
        """timing: times the jobs, by default with the unit's cost models. feed: called for requests
        at the beginning and before each launch.

        exact: every decode step is scheduled and reported to the sink; otherwise those that change
        no decision are one entry of several steps, see fast_forward.py: nothing else differs.
        Raises ValueError as `UnitScheduler` does.
        """
        self.unit = unit
        self.scheduler = UnitScheduler(
            unit.spec, only_counts=True, seed=_seed(unit), own_lane=unit.lane
        )
        self.now = 0.0
        self._sink = sink
        self._timing = timing or CostTiming(unit)
        self._jobs = Concurrency(self._timing.slowdown)
        self._fast_forward = (
            None if exact else FastForward(self.scheduler, self._jobs, self._timing)
        )
        self._feed = feed
        self._is_stirred = feed is not None
        self._wakeup_s = math.inf
        self._wake_s = {model.name: _wake_s(model, unit.spec) for model in unit.spec.models}
        self._acceptance = {
            each.name: each.speculation.acceptance for each in unit.spec.models if each.speculation
        }
        self._drafts_rng = np.random.default_rng(0)
        self._move: Move | None = None
        self._move_start_s, self._move_end_s = 0.0, math.inf

    def submit(self, request: Request, now: float) -> None:
        """Accept a request at `now`; the unit has been advanced up to then."""
        lets_in = not self._is_stirred and self._lets_in(now)
        if not lets_in:
            self.settle()
        self.now = now
        output = self.scheduler.add(request, now)
        if output is not None:
            self._tell(output)
        self._is_stirred = not lets_in

    def _lets_in(self, now: float) -> bool:
        return self._fast_forward is not None and self._fast_forward.lets_in(now)

    def advance(self, until_s: float) -> None:
        """Run up to `until_s`, inclusive for ends of jobs and exclusive for launches."""
        while True:
            if self._fast_forward is not None and not self._is_stirred:
                horizon_s = min(until_s, self._move_end_s)
                if self._fast_forward.advance(horizon_s) and until_s < self._move_end_s:
                    return
                self.settle()
            end_s = self._jobs.next_end_s
            next_s = min(end_s, self._move_end_s, self._wakeup_s)
            if self._is_stirred and self.now < min(until_s, next_s):
                self._launch()
                continue
            if next_s > until_s or next_s == math.inf or self._is_over(until_s):
                return
            self.now = next_s
            self._is_stirred = True
            if end_s <= next_s:
                self._finish()
            elif self._move_end_s <= next_s:
                self._end_move()
            else:
                self._wakeup_s = math.inf

    def _is_over(self, until_s: float) -> bool:
        """True if only weights would still move, for requests that a policy expects."""
        is_still = self._move is None and self._jobs.next_end_s == math.inf
        return until_s == math.inf and is_still and not self.scheduler.num_open

    def settle(self) -> None:
        """Report all steps so far to the scheduler and the sink."""
        if self._fast_forward is None:
            return
        now = self.now
        for ran, running, end_s in self._fast_forward.end(now):
            self.now = end_s
            self._sink.ran(self, ran)
            self._sink.launched(self, [running])
        self.now = max(now, self.now)

    def _launch(self) -> None:
        now = self.now
        self._is_stirred = False
        self._take_feed(now)
        for move in self.scheduler.next_moves(now):
            seconds = self._wake_s[move.model] if move.kind is MoveKind.WAKE else 0.0
            self._move, self._move_start_s, self._move_end_s = move, now, now + seconds
        jobs = self.scheduler.next_jobs(now)
        launched = [self._jobs.start(job, self._timing.work(job, now), now) for job in jobs]
        self._sink.launched(self, launched)
        wakeup_s = self.scheduler.next_wakeup(now)
        self._wakeup_s = math.inf if wakeup_s is None else max(wakeup_s, now + _MIN_WAIT_S)
        if self._fast_forward is not None:
            self._fast_forward.begin()

    def _take_feed(self, now: float) -> None:
        while self._feed is not None and (requests := self._feed(self.scheduler, now)):
            for request in requests:
                output = self.scheduler.add(request, now)
                if output is not None:
                    self._tell(output)

    def _end_move(self) -> None:
        move, seconds = self._move, self._move_end_s - self._move_start_s
        assert move is not None
        self._move, self._move_end_s = None, math.inf
        self._tell(self.scheduler.moved(move, seconds, self.now))

    def _finish(self) -> None:
        entry = self._jobs.finish(self.now)
        result = self._result(entry)
        output = self.scheduler.complete(entry.job, result, self.now)
        if entry.job.phase is not Phase.DECODE:
            self._tell_first_tokens(output)
        self._sink.ran(self, entry)
        self._tell(output)

    def _result(self, entry: Running) -> JobResult:
        job, seconds = entry.job, self.now - entry.start_s
        rows = job.rows
        if job.phase is Phase.DECODE and rows.drafts is None:
            counts, num_tokens = rows.counts, len(rows)
        else:
            counts = rows.samples.astype(np.int32)
            if rows.drafts is not None:
                counts += _num_right(rows.drafts, self._acceptance[job.model], self._drafts_rng)
            num_tokens = int(counts.sum())
        return JobResult(job.job_id, TOKENS[:num_tokens], counts, seconds, {}, {})

    def _tell_first_tokens(self, output: StepOutput) -> None:
        for request_id, count in zip(output.request_ids, output.counts.tolist(), strict=True):
            if count:
                self._sink.first_token(request_id, self.now)

    def _tell(self, output: StepOutput) -> None:
        for event in output.events:
            if isinstance(event, Finished | Rejected):
                self._sink.end(event, self.now)


def _wake_s(model: ModelSpec, spec: UnitSpec) -> float:
    return model.wake_s or model.resident_bytes / (spec.host_link or HOST_LINK)


def _seed(unit: SimUnit) -> CostSeed:
    spec = unit.spec
    return CostSeed(
        {name: SeedModel(model.shape, model.cost) for name, model in unit.models.items()},
        unit.tp,
        max_rows=spec.scheduler.max_decode_rows,
        max_tokens=spec.scheduler.token_budget,
        max_len=max(model.max_model_len for model in spec.models),
    )


def _num_right(
    drafts: DraftTokens, acceptance: float, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Return how many of each row's drafts are right, up to the first wrong one, int32 [rows]."""
    # A geometric number counts trials up to the first success: here, the first wrong draft.
    firsts_wrong = rng.geometric(1.0 - acceptance, len(drafts.counts)) - 1
    return np.minimum(firsts_wrong, drafts.counts).astype(np.int32)
