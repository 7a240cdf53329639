"""Sans-IO scheduler of one unit: add requests, take jobs, report results, get tokens."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from muxcluster.core.errors import ModelNotFound, MoveRefused
from muxcluster.core.events import Event, Finished, FinishReason, Rejected, StepOutput
from muxcluster.core.job import Job, JobResult, Phase
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.residency import Move, WeightOrder
from muxcluster.core.served import ModelStats, UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.scheduling.assembly import (
    carried_blocks,
    check_workers,
    chosen,
    kv_cache,
    lane,
    limits,
    model_state,
    step_times,
    weight_moves,
)
from muxcluster.scheduling.completion import Completion, ended_already, events_only
from muxcluster.scheduling.fast_forward import FastForward
from muxcluster.scheduling.faults import Failures, Isolation
from muxcluster.scheduling.jobs import JobBuilder
from muxcluster.scheduling.lanes.view import Lane, LaneView, Repetition
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.memory.batch_memory import BatchMemory
from muxcluster.scheduling.memory.quotas import Adaptation, QuotaBalancer
from muxcluster.scheduling.packing import PACKINGS
from muxcluster.scheduling.packing.batch import Packing, Turn
from muxcluster.scheduling.packing.speculation import Speculation
from muxcluster.scheduling.pipelining import Pipelining
from muxcluster.scheduling.residency.moves import resident_at_start
from muxcluster.scheduling.residency.policy import Room
from muxcluster.scheduling.shares import ShareLedger
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.requests import LiveRequest
from muxcluster.scheduling.steptime.seed import Seed


class UnitScheduler:
    """Schedules one unit; engine and simulator are its drivers (design.md §2).

    `now` is seconds from any monotonic origin and never goes back. Every request ends exactly
    once, by a Finished or Rejected event of some output. Not thread-safe.

    A driver's turn: what ended (`complete`, `fail`, `moved`, ...), then new requests, then
    `next_moves`, then `next_jobs`. Where all weights fit together there are no moves.
    """

    def __init__(
        self,
        spec: UnitSpec,
        *,
        max_steps: int = 1,
        only_counts: bool = False,
        seed: Seed | None = None,
        own_lane: Lane | None = None,
    ) -> None:
        """max_steps: most decode steps in one job. only_counts: blocks and output tokens are only
        counted, in a simulator: blocks have no ids, every token is 0, outputs of decode jobs name
        no requests, and no job is pipelined. seed: what is known of step times before the first.
        own_lane: in place of the one that `spec` names, to simulate a scheduler that is not ours.

        Raises ValueError for an unknown lane or packing, workers that cannot run the lane's
        phases, a pool too small for one column of each model, and a model that does not fit into
        `resident_bytes` beside those that are always resident.
        """
        policy = spec.scheduler
        packing = chosen(PACKINGS, policy.packing, "packing")
        self._times = step_times(spec, seed, is_simulated=only_counts)
        self._lane, self._judge = lane(
            spec, self._times, is_predicting=packing.predicts, own=own_lane
        )
        self._shares = ShareLedger(spec.workers)
        check_workers(policy.lane, self._lane.phases, self._shares)
        has_quotas = self._lane.uses_quotas
        lends = packing.may_lend and policy.shares_blocks and spec.num_host_blocks > 0
        self._kv = kv_cache(spec, has_block_ids=not only_counts, lends=lends)
        self._models = {
            model.name: model_state(
                model, spec, self._kv.of(model.name), keeps_output=not only_counts
            )
            for model in spec.models
        }
        models = tuple(self._models.values())
        self._carry = carried_blocks(self._kv, spec, models, uses_quotas=has_quotas)
        self._memory = Memory(self._kv, models, spec.block_bytes, is_bidirectional=lends)
        self.batch_memory = BatchMemory(self._kv, self._models, is_bound=has_quotas and not lends)
        self._limits = limits(policy, max_steps)
        self._packing: Packing = Isolation(
            packing(self._memory, self._limits, self._times),
            self._memory,
            self._limits,
            self._times,
        )
        self._speculation = Speculation(self._memory, self._limits, self._times)
        # Of step times nobody else tells it where neither packing nor judge need them.
        self._learns_times = (
            self._speculation.is_on and not packing.predicts and self._judge is None
        )
        self._builder = JobBuilder(saves=lends)
        self._view = LaneView(
            self._memory, self._shares, self._packing, self._times, policy.token_budget
        )
        self._start = resident_at_start(spec)
        balancer = QuotaBalancer(self._kv, models, self._carry, self._start) if has_quotas else None
        self._adaptation = Adaptation(
            models, balancer, policy.quota_period_s, self._memory.take_back
        )
        self._completion = Completion(self._memory)
        self._fast_forward = FastForward(
            self._models,
            self._kv,
            self._view,
            self._lane,
            self._builder,
            min(policy.max_decode_rows, policy.token_budget),
        )
        self._pipelining: Pipelining | None = None
        if policy.pipeline_depth > 1 and not only_counts and self._lane.may_pipeline:
            self._pipelining = Pipelining(
                self._view,
                self._lane,
                self._packing,
                self._builder,
                self._speculation,
                joins_forced=spec.joins_forced,
            )
        self._failures = Failures(self._memory)
        self._weights = weight_moves(spec, models, self._memory, self._shares)
        self._show_weights()
        # packings that go by arrival alone, or by deadlines, know no tenants
        self._has_turns = not (self._packing.is_class_blind or self._packing.by_deadline)
        self._live: dict[str, LiveRequest] = {}
        self._num_added = 0

    def add(self, request: Request, now: float) -> StepOutput | None:
        """Accept a request; return an output only where it ends at once.

        That is Rejected where it can never run here, Finished where a recovered request has output
        up to its end. Raises ValueError where a live request has the same id.
        """
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id!r} is here already")
        self._adaptation.advance(now)
        model = self._models.get(request.model)
        if model is None:
            message = f"no model {request.model!r} here"
            return events_only([Rejected(request.request_id, "model_not_found", message)])
        if (rejected := model.refusal(request, self._carry[model.name])) is not None:
            return events_only([rejected])
        if self._weights is not None and self._weights.refuses(model.name):
            message = f"{model.name!r} is not resident and no model is woken here"
            return events_only([Rejected(request.request_id, "model_not_found", message)])
        live = LiveRequest.of(
            request,
            self._num_added,
            now,
            model.spec.slo,
            is_class_blind=self._packing.is_class_blind,
            by_deadline=self._packing.by_deadline,
        )
        self._num_added += 1
        if request.service_class is ServiceClass.INTERACTIVE:
            # a batch is no demand: it takes what is free and must move neither quotas nor plans
            model.meter.arrive()
            if live.slo is not None:
                model.arrivals.add(live.slo.ttft_s, live.num_tokens, now)
        ended = ended_already(request, model.max_total(request), model.spec.eos_token_ids)
        if ended is not None:
            return events_only([live.finished(ended[0], now, stop_token=ended[1])])
        if self._weights is not None:
            weights = self._weights.of(model.name)
            weights.try_again(now)
            if weights.cause:
                return events_only([_without_weights(live, weights.cause, now)])
            weights.expect(live, now)
            self._weights.touch()
            live.absent_before_s = weights.absent_s(now)
        self._live[request.request_id] = live
        model.counters.num_constrained += request.sampling.constraint is not None
        self._wait(model, live)
        return None

    def _wait(self, model: ModelState, live: LiveRequest) -> None:
        if self._has_turns:
            model.take_turn(live)
        model.waiting.push(live)

    def abort(self, request_id: str, now: float) -> StepOutput | None:
        """End a request; None where it is unknown, or in a running job, with which it ends."""
        live = self._live.get(request_id)
        if live is None:
            return None
        model = self._models[live.request.model]
        if live.row is None:
            model.waiting.remove(live)
        elif model.running.in_job[live.row]:
            model.running.abort(live.row)
            return None
        else:
            self._memory.release(model, live.row, is_trusted=True)
        model.end_turn(live)
        return self._output(events_only([live.finished(FinishReason.ABORT, now)]), now)

    def resident_at_start(self) -> tuple[str, ...]:
        """Return the models whose weights a driver brings to the devices before the first turn."""
        return self._start

    def next_moves(self, now: float) -> list[Move]:
        """Return moves of weights to start now, before jobs are chosen; at most one runs at a time.

        Sequences of a model that is to be parked are preempted here. Its memory is free when the
        move has ended (`moved`), and none of its jobs runs before a wake has.
        """
        if self._weights is None:
            return []
        self._adaptation.advance(now)
        moves = self._weights.next_moves(now)
        self._show_weights()
        self._adaptation.settle(now)
        return moves

    def request_move(self, name: str, order: WeightOrder, now: float) -> None:
        """Take an operator's order for a model's weights; `next_moves` returns what follows.

        A model that is to leave has its rows drained or preempted as for any park, and what is
        queued waits. Raises ModelNotFound; MoveRefused where all weights of the unit stay, a model
        that always stays or is pinned should leave, or a pin leaves too little room for others.
        """
        if name not in self._models:
            raise ModelNotFound(f"no model {name!r} here", "model")
        if self._weights is None:
            raise MoveRefused(f"{name} cannot be moved: all weights of its unit stay resident")
        self._weights.request(name, order, now)
        self._show_weights()

    def moved(self, move: Move, seconds: float, now: float) -> StepOutput:
        """Note that a move ended after `seconds`; one that a reset forgot is ignored."""
        if self._weights is not None:
            self._weights.moved(move, seconds, now)
            self._show_weights()
        return self._output(events_only([]), now)

    def move_failed(
        self, move: Move, now: float, cause: str = "", *, is_final: bool = False
    ) -> StepOutput:
        """Note that a move failed: the weights are where they were, and it is tried again later.

        is_final: a wake that cannot work. All requests of the model, for a while those to come too,
        end with `error`, code "model_failed", and `cause`; then the next one has it tried again.
        """
        events: list[Event] = []
        if self._weights is not None:
            if self._weights.failed(move, now, cause, is_final=is_final):
                model = self._models[move.model]
                for live in tuple(model.waiting):
                    model.waiting.remove(live)
                    model.end_turn(live)
                    events.append(_without_weights(live, cause, now))
            self._show_weights()
        return self._output(events_only(events), now)

    def lose_model(self, name: str, now: float) -> StepOutput:
        """Note that the processes of a resident model are gone: it must be woken again.

        Its running jobs have failed before, by `fail`; its sequences are preempted. Raises KeyError
        for an unknown model.
        """
        if self._weights is not None:
            self._weights.lose(name, now)
            self._show_weights()
        return self._output(events_only([]), now)

    def next_jobs(self, now: float) -> list[Job]:
        """Return jobs to launch on the free SM shares, then jobs to send after running ones."""
        self._adaptation.advance(now)
        jobs: list[Job] = []
        for model, phase, place in self._lane.proposals(self._view, now):
            num_beside = len(self._shares.running)
            turn = Turn(now, place.share, self._builder.next_id, num_beside)
            batch = self._packing.pack(model, phase, turn)
            if len(batch) == 0:
                continue  # memory lets no row of it run now
            batch = self._speculation.with_drafts(model, phase, place.share, batch)
            job = self._builder.build(model, phase, place, batch, now)
            self._shares.start(job, now)
            self._view.count(job)
            jobs.append(job)
        return jobs if self._pipelining is None else jobs + self._pipelining.next_jobs()

    def complete(self, job: Job, result: JobResult, now: float) -> StepOutput:
        """Apply the result of `job`; its follower runs now. Empty for a job that a reset forgot."""
        follower = self._shares.follower(job)
        seconds = self._end(job, now)
        if seconds is None:
            return events_only([])
        model = self._models[job.model]
        num_beside = len(self._shares.running)
        alone_s = max(0.0, seconds - result.image_s)
        if result.image_tokens:
            self._times.images.observe(job.model, job.share, result.image_tokens, result.image_s)
        self._speculation.observe(model, job, result.counts, alone_s, num_beside)
        # Only jobs that ran to their end say how long such jobs take, images aside, and those with
        # drafts say nothing of others.
        if job.rows.drafts is None:
            self._packing.observe(job, alone_s, num_beside)
            if self._learns_times:
                self._times.observe(job, alone_s, num_beside)
        if self._judge is not None:
            since_s = self._shares.running_since_s(now)
            self._judge.ended(job, alone_s, min(since_s, now - seconds), now)
        self._memory.end_copies(job, now, succeeded=True)
        model.peak_blocks = max(model.peak_blocks, model.kv.used)
        if follower is not None:
            self._shares.start(follower, now)
        self._failures.clear(model, job)
        output = self._completion.succeed(model, job, result, now, follower)
        if self._weights is not None:
            self._weights.ran(job.model, now)
        return self._output(output, now)

    def fail(
        self, job: Job, now: float, cause: str = "", *, has_started: bool = True
    ) -> StepOutput:
        """Queue the rows of a job again whose worker died or raised `cause`, at first apart.

        A request whose lone jobs fail twice in a row ends with `error`, code "poison_request". The
        job's follower will not run, as if a reset had forgotten it. has_started: False where the
        worker was gone before it took the job.
        """
        if self._end(job, now) is None:
            return events_only([])
        model = self._models[job.model]
        self._memory.end_copies(job, now, succeeded=False)
        if self._weights is not None:
            self._weights.touch()
        return self._output(
            events_only(self._failures.fail(model, job, now, cause, has_started=has_started)), now
        )

    def reset(
        self, now: float, cause: str = "", *, resident: Collection[str] | None = None
    ) -> StepOutput:
        """Run every sequence again after the memory's owner restarted and all KV was lost.

        Running jobs count as failed, so the output may hold ends. A running move is forgotten.
        resident: models whose weights are there now, by default those of `resident_at_start`.
        Raises ValueError where these do not fit together.
        """
        events: list[Event] = []
        names = frozenset(()) if self._weights is None else self._weights.fitting(resident)
        self._kv.reset_copies()
        jobs = self._shares.running
        for job in jobs:
            self._end(job, now)
            model = self._models[job.model]
            events += self._failures.lose(model, job, now, cause, was_alone=len(jobs) == 1)
        for model in self._models.values():
            for row in model.running.idle().tolist():
                self._memory.requeue(model, row, now, is_trusted=False)
        self._kv.drop_cache()
        if self._weights is not None:
            self._weights.reset(now, names)
            self._show_weights()
        return self._output(events_only(events), now)

    def next_wakeup(self, now: float) -> float | None:
        """Return when to take a turn though nothing happened; None if nothing is to be done."""
        next_s = self._adaptation.next_s() if self._live else None
        if self._weights is None or self._weights.next_s == math.inf:
            return next_s
        if not (self._live or self._weights.has_work or self._weights.is_watching):
            return None
        return self._weights.next_s if next_s is None else min(next_s, self._weights.next_s)

    def repeats(self, first: Job) -> dict[Job, int]:
        """Return how often each running decode job would end and be launched again as it is.

        Call it after `next_jobs`. first: the job that ends first; empty where that one is not
        launched again. It holds while nothing else happens, before `undisturbed_until_s`. Jobs that
        do not run yet take turns with the one that does.
        """
        # Blocks may have come free after prompts had been passed over.
        if self._memory.has_preempted or not self._packing.repeats or self._speculation.is_on:
            return {}
        return self._fast_forward.limits(first)

    @property
    def lets_in(self) -> bool:
        """True if a request that arrives now changes no decision.

        It holds until a job ends that does not repeat, and before `undisturbed_until_s`.
        """
        if self._memory.has_preempted or not self._packing.repeats:
            return False
        # it may be of a model that is not resident, or keep one from being parked
        return self._weights is None and self._fast_forward.lets_in

    @property
    def undisturbed_until_s(self) -> float:
        """Before then, time alone changes no decision, nor do jobs that only repeat themselves."""
        until_s = self._adaptation.undisturbed_until_s
        if self._weights is not None:
            until_s = min(until_s, self._weights.next_s)
        return until_s if self._judge is None else min(until_s, self._judge.steady_until_s)

    def repeat(self, repetitions: Sequence[Repetition], now: float) -> list[Job]:
        """Do as `complete` and `next_jobs` would many times, within `repeats`.

        Returns the jobs that run then. For a simulator: every row gets tokens of id 0. A switch
        between shared and mixed jobs comes after all of them, where it might have come amid them.
        """
        jobs = self._fast_forward.repeat(repetitions)
        if self._weights is not None:
            for each in repetitions:
                if each.count:
                    self._weights.of(each.job.model).use(each.end_s)
        if self._judge is not None:
            self._judge.repeated(repetitions, now)
        return jobs

    @property
    def has_waiting_work(self) -> bool:
        """True if a job could use idle SMs: sequences decode in no job, or prompts that memory lets
        in wait and no job computes prompts (one does at a time).

        Call it after `next_jobs`.
        """
        return self._view.has_waiting_work

    @property
    def num_open(self) -> int:
        """Return the accepted requests that have not ended."""
        return len(self._live)

    def outlook(self, name: str, now: float) -> Room:
        """Return what a new request would wait for a model's weights, and cost others."""
        return Room(0.0, 0.0) if self._weights is None else self._weights.outlook(name, now)

    def used_blocks(self) -> dict[str, int]:
        """Return the number of distinct blocks that live sequences of each model hold."""
        models = self._models.values()
        return {model.name: model.kv.used + model.kv.batch_used for model in models}

    def num_output(self, request_id: str) -> int:
        """Return the output tokens so far of a live request. Raises KeyError for another."""
        live = self._live[request_id]
        if live.row is None:
            return len(live.output)
        return len(self._models[live.request.model].running.output(live.row))

    def stats(self, now: float, unit_id: str) -> UnitStats:
        """Return the state at `now`; the driver adds the jobs, which it timed."""
        return UnitStats(
            unit_id=unit_id,
            now_s=now,
            num_blocks=self._kv.num_blocks,
            free_blocks=self._kv.free,
            sharing=None if self._judge is None else self._judge.stats(),
            models=tuple(self._model_stats(model, now) for model in self._models.values()),
        )

    def _model_stats(self, model: ModelState, now: float) -> ModelStats:
        stats = model.stats(self._times.mean_error(model.name))
        return stats if self._weights is None else self._weights.told(stats, now)

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self._kv.check()
        self._shares.check()
        self._adaptation.check()
        for model in self._models.values():
            model.check(self._shares.running)
        if self._weights is not None:
            self._weights.check()
            assert self._view.models == self._weights.runnable, "lanes see other models"
        num_live = sum(model.num_live for model in self._models.values())
        assert num_live == len(self._live), "a request is lost or lives twice"

    def _end(self, job: Job, now: float) -> float | None:
        """Remove a job that ended; return the seconds it ran, None where a reset forgot it."""
        start_s = self._shares.end(job)
        if start_s is None:
            return None
        if job.phase is not Phase.PREFILL:
            table, are_decoding = self._models[job.model].running, job.phase is Phase.DECODE
            table.add_running(job.rows.table_rows, now - start_s, are_decoding=are_decoding)
        return now - start_s

    def _show_weights(self) -> None:
        """Let lanes see the models whose jobs may start, and divide the pool among those awake."""
        if self._weights is not None:
            self._view.models = self._weights.runnable
            self._adaptation.follow(self._weights.awake)

    def _output(self, output: StepOutput, now: float) -> StepOutput:
        """Put pending events of preemption before `output`; forget the requests that end in it."""
        if self._weights is not None and output.events:
            output = replace(output, events=tuple(self._with_waking(output.events, now)))
        for event in output.events:
            del self._live[event.request_id]
            self._failures.forget(event.request_id)
        self._shares.is_exclusive = self._failures.is_exclusive
        self._adaptation.settle(now)
        preempted = self._memory.take_events()
        if self._weights is not None and (output.events or preempted):
            self._weights.touch()
        return replace(output, events=preempted + output.events) if preempted else output

    def _with_waking(self, events: Sequence[Event], now: float) -> Iterator[Event]:
        """Yield `events`, ends with the time for which the model was not resident meanwhile."""
        assert self._weights is not None
        for event in events:
            assert isinstance(event, Finished), "requests that were accepted only finish"
            live = self._live[event.request_id]
            absent_s = self._weights.of(live.request.model).absent_s(now)
            yield replace(event, waking_s=absent_s - live.absent_before_s)


def _without_weights(live: LiveRequest, cause: str, now: float) -> Finished:
    message = f"the weights of {live.request.model} cannot be loaded: {cause}"
    return live.finished(FinishReason.ERROR, now, code="model_failed", message=message)
