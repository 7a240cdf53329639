"""The unit: a thread that turns requests into jobs and jobs' results into token deltas."""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from muxcluster.core.backends import ModelBackend, as_loaded
from muxcluster.core.batch_part import BatchPart, PartMessage
from muxcluster.core.errors import ConfigError, InvalidValue, NotReady
from muxcluster.core.events import Finished, FinishReason, Rejected, StepOutput, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.residency import Move, MoveKind, WeightOrder
from muxcluster.core.served import SharingStats, UnitState, UnitStats
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import (
    Executor,
    JobDone,
    JobFailed,
    ModelLost,
    Moved,
    MoveFailed,
    MovesModels,
    Outcome,
    OwnerLost,
    StillRunning,
)
from muxcluster.engine.unit.clock import Clock, MonotonicClock
from muxcluster.engine.unit.constraint_checks import ConstraintChecks, mask_process
from muxcluster.engine.unit.deltas import BatchDeltas, deltas_of
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.engine.unit.inbox import Inbox, Message
from muxcluster.engine.unit.job_log import JobLog
from muxcluster.engine.unit.warm_up import warm_up
from muxcluster.offline.process.side import SideProcess
from muxcluster.offline.unit_feeder import FedPart, PartRenewal, UnitFeeder
from muxcluster.scheduling.packing import PACKINGS
from muxcluster.scheduling.residency.moves import resident_at_start
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.scheduling.steptime.seed import MeasuredSeed

logger = logging.getLogger(__name__)

OutputSink = Callable[[Mapping[str, TokenDelta]], None]

_MIN_WAIT_S = 0.001  # so that a deadline already past does not make the loop spin
# lines whose plan is renewed in this process: it takes some milliseconds, another process a second
# to start
_FEW_LINES = 512


class Unit:
    """Drives `UnitScheduler` with the real clock and real workers.

    Every request that `submit` accepts gets exactly one last delta (finished or rejected) through
    `on_output`, which is called on the unit's thread with one delta per request and step. The
    next jobs are launched before the outputs of the last ones are delivered. One lock guards
    scheduler and inbox; it is never held while a job runs or `on_output` is called.
    """

    def __init__(
        self,
        spec: UnitSpec,
        on_output: OutputSink,
        clock: Clock | None = None,
        *,
        executor: Executor | None = None,
    ) -> None:
        """executor: where jobs run, by default what `spec.partition` names. Starts nothing yet.

        Raises ConfigError if the partition is unknown, unfit for the device, or cannot let models
        take turns in memory; ValueError for an unknown policy, or a pool or workers that cannot do
        what it needs.
        """
        masks = mask_process(spec)
        self._spec = spec = replace(spec, mask_address=masks.address)
        self._on_output = on_output
        self._clock = clock or MonotonicClock()
        self._measured = MeasuredSeed()
        with ExitStack() as undo:
            undo.callback(masks.close)
            self._executor = executor or make_executor(spec)
            self._scheduler = UnitScheduler(spec, seed=self._measured)
            self._mover = _mover(spec, self._executor)
            undo.pop_all()
        self._feeder = UnitFeeder(spec, self._scheduler.batch_memory)
        self._batch_deltas = BatchDeltas()
        # a thread that waits for the process: plans take 0.1 s under Python's lock
        self._planner = ThreadPoolExecutor(1, f"planner {spec.unit_id}")
        self._plans = SideProcess()
        self._jobs = JobLog()
        self._moves: dict[int, Move] = {}
        self._lock = threading.Lock()
        self._checks = ConstraintChecks(masks, self._post_checked)
        self._inbox = Inbox()
        self._open: set[str] = set()
        self._outputs: list[StepOutput] = []
        self._is_closing = False
        self._refusal: NotReady | None = NotReady(f"{spec.unit_id} has not started")
        self._has_failed = False
        self._is_reloading = False
        self._is_sharing: bool | None = None
        self._progress_s = self._clock.now()
        self._thread = threading.Thread(target=self._run, name=f"unit {spec.unit_id}", daemon=True)

    def start(self) -> None:
        """Load the models, measure step times if asked for, then take requests; block until ready.

        Raises LoadError naming the file at fault, EngineFailure if loading died.
        """
        try:
            self._executor.start()
            self._take(self._executor.backends)
            if PACKINGS[self._spec.scheduler.packing].predicts:
                at_start = _of_residents(self._spec)
                warm_up(at_start, self._executor, self._clock, self._measured)
        except BaseException:
            self._checks.close()
            self._executor.close()
            raise
        self._refusal = None
        self._thread.start()

    def _take(self, backends: Sequence[ModelBackend]) -> None:
        """Take over the models as loaded; the scheduler has not been used yet."""
        spec = as_loaded(self._spec, backends)
        if spec != self._spec:
            self._spec, self._scheduler = spec, UnitScheduler(spec, seed=self._measured)
            self._feeder = UnitFeeder(spec, self._scheduler.batch_memory)

    def close(self, timeout_s: float = 10.0) -> None:
        """End every open request with `abort`, then the thread and the worker processes.

        Child processes are killed if that takes longer than `timeout_s` seconds. Idempotent.
        """
        with self._lock:
            self._is_closing = True
            if self._refusal is None:
                self._executor.wake()
        if self._thread.ident is None:
            self._checks.close()
            self._executor.close()
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.error("%s did not end in %g s: its workers are killed", self._name, timeout_s)
            self._executor.kill()
            self._thread.join(timeout_s)

    def submit(self, request: Request) -> None:
        """Accept a request, from any thread.

        Raises NotReady before start, after close and after a failure of the unit, InvalidValue if
        an open request has the same id.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if request.request_id in self._open:
                raise InvalidValue(f"request id {request.request_id!r} is in use", "request_id")
            if not self._open:
                self._progress_s = self._clock.now()
            self._open.add(request.request_id)
            if request.line is not None:
                self._batch_deltas.follow(request.request_id)
            if request.sampling.constraint is None:
                self._post(request)
            else:
                self._checks.begin(request)

    def abort(self, request_id: str) -> None:
        """End a request with `abort`, from any thread; an unknown or ended one is ignored."""
        with self._lock:
            if request_id in self._open:
                self._post(self._checks.abort(request_id) or request_id)

    def request_move(self, model: str, order: WeightOrder) -> None:
        """Take an operator's order for a model's weights, from any thread.

        It is followed later; `stats` tells when. Raises NotReady as `submit`, and what
        `UnitScheduler.request_move` raises.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._scheduler.request_move(model, order, self._clock.now())
            self._executor.wake()

    def feed(self, message: PartMessage) -> None:
        """Feed a part of a planned batch, or hear what became of its lines; from any thread.

        Ignored if the unit takes no requests. Raises ValueError for an unknown order.
        """
        # made here and not on the unit's thread, which would stand still meanwhile
        told = FedPart.of(message) if isinstance(message, BatchPart) else message
        with self._lock:
            if self._refusal is not None:
                return
            self._post(told)
            if isinstance(message, BatchPart) and len(message) > _FEW_LINES:
                # lines wait for the plan that follows their sample: its process starts meanwhile
                self._planner.submit(self._plans.open)

    def stats(self) -> UnitStats:
        """Return the unit's state and the jobs that ended since the last call; from any thread."""
        with self._lock:
            stats = self._scheduler.stats(self._clock.now(), self._spec.unit_id)
            self._say_if_changed(stats.sharing)
            return replace(stats, jobs=self._jobs.take(), state=self.state)

    def _say_if_changed(self, sharing: SharingStats | None) -> None:
        if sharing is None or sharing.is_on is self._is_sharing:
            return
        self._is_sharing = sharing.is_on
        how = "share the SMs" if sharing.is_on else "run one after another on all SMs"
        logger.info(
            "%s: jobs %s (gain of sharing %.2f, of mixed jobs %.2f)",
            self._name,
            how,
            sharing.gain,
            sharing.mixed_gain,
        )

    @property
    def state(self) -> UnitState:
        """Ready from `start` on; recovering while child processes are silent or replaced."""
        if self._has_failed:
            return UnitState.FAILED
        is_recovering = self._is_reloading or self._executor.is_recovering
        return UnitState.RECOVERING if is_recovering else UnitState.READY

    def last_step_age_s(self) -> float:
        """Seconds without progress while requests are open; 0 when idle.

        Progress is a job that ended, or jobs whose workers show signs of life. It is 0, too, while
        a lost memory owner loads again, and infinite once the unit has failed.
        """
        # A health check compares it with its limit; a new unit would have to load the same.
        with self._lock:
            if self._has_failed:
                return math.inf
            if self._is_reloading or self._is_idle:
                return 0.0
            return self._clock.now() - self._progress_s

    @property
    def num_open(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._open)

    @property
    def _name(self) -> str:
        return self._spec.unit_id

    def _post(self, message: Message) -> None:
        """Post a message and wake the thread. The caller holds the lock and the thread is alive."""
        # So the executor is not closed yet.
        self._inbox.post(message)
        self._executor.wake()

    def _post_checked(self, message: Request | Rejected | Finished) -> None:
        """Post a request whose constraint is sound, or the end of one whose constraint is not."""
        with self._lock:
            was_idle = self._is_idle
            # together, so that an abort comes before or after both
            if self._refusal is None and self._checks.end(message.request_id):
                if was_idle:
                    self._progress_s = self._clock.now()
                self._post(message)

    def _run(self) -> None:
        reason, message = FinishReason.ABORT, f"{self._name} was closed"
        code = "server_shutting_down"
        try:
            while not self._is_closing:
                self._turn()
        except Exception as error:
            logger.exception("%s failed", self._name)
            reason, message = FinishReason.ERROR, f"{self._name} failed: {error}"
            code = "replica_lost"
            self._has_failed = True
        finally:
            self._end(reason, NotReady(message, code=code))

    def _turn(self) -> None:
        with self._lock:
            now = self._clock.now()
            for output in self._inbox.hand_to(self._scheduler, self._feeder, now):
                self._collect(output)
            self._start_lines(now)
            self._start_moves(now)
            for job in self._scheduler.next_jobs(now):
                self._jobs.start(job, now)
                self._executor.launch(job)
            timeout_s = self._timeout_s(now)
        self._deliver()
        for outcome in self._executor.wait(timeout_s):
            self._settle(outcome)

    def _start_moves(self, now: float) -> None:
        """Start to wake or park models; the caller holds the lock."""
        if self._mover is None:
            return
        for move in self._scheduler.next_moves(now):
            self._moves[move.move_id] = move
            self._mover.move(move)

    def _start_lines(self, now: float) -> None:
        """Start the batch lines that find room."""
        was_idle = self._is_idle
        for request in self._feeder.take(now):
            if was_idle:
                self._progress_s = now
            ended = self._scheduler.add(request, now)
            if ended is not None:
                self._collect(ended)
        for renewal in self._feeder.renewals():
            self._planner.submit(self._make_plan, renewal)

    def _make_plan(self, renewal: PartRenewal) -> None:
        """Renew a plan; called on the planner's thread."""
        try:
            is_short = len(renewal) <= _FEW_LINES
            found = renewal.run() if is_short else self._plans.call(renewal.run)
        except Exception:
            if self._refusal is None:  # else the unit ends, and its process with it
                logger.exception("%s: a batch keeps its old plan", self._name)
            return
        with self._lock:
            if self._refusal is None:
                self._post(found)

    @property
    def _is_idle(self) -> bool:
        """True if all open requests wait for their turn in the feeder, or are being checked."""
        return len(self._open) == len(self._feeder) + len(self._checks)

    def _collect(self, output: StepOutput) -> None:
        """Keep an output until it is delivered. The caller holds the lock."""
        self._feeder.note(output)
        self._outputs.append(output)

    def _timeout_s(self, now: float) -> float | None:
        wakeup_s, again_s = self._scheduler.next_wakeup(now), self._feeder.next_s
        waits_s = [] if wakeup_s is None else [max(_MIN_WAIT_S, wakeup_s - now)]
        if again_s is not None:
            waits_s.append(again_s)
        return min(waits_s, default=None)

    def _settle(self, outcome: Outcome) -> None:
        if isinstance(outcome, OwnerLost):
            self._reload(outcome)
            return
        with self._lock:
            now = self._progress_s = self._clock.now()
            if isinstance(outcome, StillRunning):
                return
            self._collect(self._output_of(outcome, now))

    def _output_of(
        self, outcome: JobDone | JobFailed | Moved | MoveFailed | ModelLost, now: float
    ) -> StepOutput:
        """Tell the scheduler what became of a job, a move or a model."""
        if isinstance(outcome, JobDone):
            job = self._jobs.finish(outcome.result, now)
            return self._scheduler.complete(job, outcome.result, now)
        if isinstance(outcome, JobFailed):
            job = self._jobs.fail(outcome.job_id)
            logger.warning("job %d of %s failed: %s", job.job_id, job.model, outcome.message)
            started = outcome.has_started
            return self._scheduler.fail(job, now, outcome.message, has_started=started)
        if isinstance(outcome, ModelLost):
            return self._scheduler.lose_model(outcome.model, now)
        move = self._moves.pop(outcome.move_id)
        if isinstance(outcome, Moved):
            state = "resident" if move.kind is MoveKind.WAKE else "parked"
            logger.info("%s: %s is %s after %.2f s", self._name, move.model, state, outcome.seconds)
            return self._scheduler.moved(move, outcome.seconds, now)
        return self._scheduler.move_failed(move, now, outcome.message, is_final=outcome.is_final)

    def _reload(self, loss: OwnerLost) -> None:
        """Load again after all memory is lost; requests wait until a new owner has loaded."""
        logger.warning("%s loads again: %s", self._name, loss.message)
        self._is_reloading = True
        with self._lock:
            self._jobs.forget_running()
            self._moves.clear()
            self._collect(self._scheduler.reset(self._clock.now(), loss.message))
        self._deliver()
        self._executor.restart()
        self._progress_s = self._clock.now()
        self._is_reloading = False

    def _deliver(self) -> None:
        outputs, self._outputs = self._outputs, []
        with self._lock:
            deltas = self._batch_deltas.due(deltas_of(outputs))
            for request_id, delta in deltas.items():
                if delta.finished is not None or delta.rejected is not None:
                    self._open.discard(request_id)
        if deltas:
            self._on_output(deltas)

    def _end(self, reason: FinishReason, refusal: NotReady) -> None:
        """Deliver last outputs, end every open request, then end all processes."""
        with self._lock:
            self._refusal = refusal
            self._inbox.clear()
        try:
            self._deliver()
            left = sorted(self._open)
            ends = [
                Finished(request_id, reason, message=refusal.message, code=refusal.code)
                for request_id in left
            ]
            if ends:
                self._on_output({end.request_id: TokenDelta(finished=end) for end in ends})
        except Exception:
            logger.exception("%s could not deliver its last outputs", self._name)
        finally:
            with self._lock:
                self._open.clear()
                self._batch_deltas.clear()
            self._planner.shutdown(wait=False, cancel_futures=True)
            self._plans.close()
            self._checks.close()
            self._executor.close()


def _of_residents(spec: UnitSpec) -> UnitSpec:
    """Return the unit with the models that are resident when it starts, and no others."""
    names = resident_at_start(spec)
    models = tuple(model for model in spec.models if model.name in names)
    return replace(spec, models=models, resident_bytes=0)


def _mover(spec: UnitSpec, executor: Executor) -> MovesModels | None:
    """Return who moves the models' weights; None if all of them always stay.

    Raises ConfigError if they must be moved, and the executor cannot.
    """
    if not spec.resident_bytes:
        return None
    if isinstance(executor, MovesModels):
        return executor
    message = f"{type(executor).__name__} keeps all models resident: set it to 0"
    raise ConfigError(spec.unit_id, "resident_bytes", message)
