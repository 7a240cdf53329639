"""Executor of a unit with more models than memory: models wake and are parked while others run."""

import logging
import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure, LoadError
from muxcluster.core.job import Job
from muxcluster.core.residency import Move, MoveKind
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import (
    ModelLost,
    Moved,
    MoveFailed,
    Outcome,
    OwnerLost,
    StillRunning,
)
from muxcluster.engine.processes.child_executor import ChildExecutor
from muxcluster.engine.processes.child_process import STOP_GRACE_S
from muxcluster.engine.processes.executor import MOST_PREPARING_S, SETTLED_S
from muxcluster.engine.processes.launcher import ForkLauncher
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.losses import LossLedger
from muxcluster.engine.processes.owner_link import OwnerLink
from muxcluster.engine.processes.rung_workers import RungWorker
from muxcluster.engine.processes.worker_link import GONE
from muxcluster.engine.residency.model_link import LinkState, ModelLink
from muxcluster.scheduling.residency.moves import resident_at_start

logger = logging.getLogger(__name__)

T = TypeVar("T")

POOL_OWNER_MODULE = "muxcluster.engine.residency.pool_owner"

_OWN_MOVE = -1  # id of the moves that the executor makes itself, before the unit is ready


class _PoolLost(Exception):
    """The pool owner does not answer; the message says "died" or "hung"."""


class ResidencyExecutor(ChildExecutor):
    """Executor with a pool owner, and for each resident model an owner with a worker per rung.

    A model wakes in a new process, so the others lose nothing but processor time; parking it ends
    its processes. A lost worker is replaced. A lost owner of a model is reported by ModelLost, or
    by MoveFailed if the model was on its way, and harms no other model; a lost pool owner is
    reported by OwnerLost. Lost means dead or hung, as for `ProcessExecutor`. A model whose
    processes are lost too often fails its next wake for good, and then begins anew.
    """

    def __init__(self, spec: UnitSpec, patience: Patience | None = None) -> None:
        super().__init__(spec, patience)
        self._launcher = ForkLauncher(POOL_OWNER_MODULE)
        self._plan = self._launcher.plan(spec)
        self._ids = {model.name: place for place, model in enumerate(spec.models)}
        self._model_losses = {name: self._new_losses(name) for name in self._ids}
        self._known: dict[str, ModelBackend] = {}
        self._given_up: dict[str, str] = {}
        self._pool: OwnerLink | None = None
        self._links: dict[str, ModelLink] = {}
        self._move: Move | None = None
        self._move_start_s = 0.0
        self._lost: str | None = None
        self._pending: list[Outcome] = []
        self._refusal: LoadError | EngineFailure | None = None
        self._prepare_s = math.inf

    @property
    def owner_pid(self) -> int:
        """Process id of the pool owner; its children are the owners of resident models."""
        assert self._pool is not None, "not started"
        return self._pool.pid

    @property
    def model_pids(self) -> Mapping[str, int]:
        """Process ids of the owners of all models but parked ones; their children are workers."""
        return {name: link.pid for name, link in list(self._links.items())}

    def launch(self, job: Job) -> None:
        link = self._links[job.model]
        assert link.state is LinkState.SERVING, f"{job.model} is {link.state.value}"
        link.workers.launch(job)

    def move(self, move: Move) -> None:
        assert self._move is None, "one move at a time"
        self._move, self._move_start_s = move, time.monotonic()
        if move.kind is MoveKind.PARK:
            self._links[move.model].begin_end(self._move_start_s + STOP_GRACE_S)
            return
        refusal = self._given_up.pop(move.model, None)
        if refusal is not None:
            self._pending.append(self._failed(EngineFailure(refusal), is_final=True))
            self.wake()
            return
        try:
            self._links[move.model] = self._ask_pool(lambda: self._link(move.model))
        except _PoolLost as loss:  # `wait` reports it
            self._lost = str(loss)
            self.wake()

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        ready = self._speaking(timeout_s)
        if self._pool in ready:
            return [self._lose_pool("died")]
        if self._lost is not None:
            return [self._lose_pool(self._lost)]
        outcomes, self._pending = self._pending, []
        try:
            # Workers first: what they have done counts, whatever became of their owner.
            for worker in [each for each in ready if isinstance(each, RungWorker)]:
                outcomes.extend(self._hear_worker(worker))
            for link in [each for each in ready if isinstance(each, ModelLink)]:
                outcomes.extend(self._hear_owner(link))
            outcomes.extend(self._woken())
            if self._is_beat_due():
                outcomes.extend(self._beat())
                self._prepare_in_time(time.monotonic())
        except _PoolLost as loss:
            return [self._lose_pool(str(loss))]
        if ready:
            self._is_doubtful = self._has_doubts()
        return outcomes

    def restart(self) -> None:
        self._drop_processes()  # they may be sound, after losses in the warm-up
        super().restart()

    def prepare(self) -> None:
        """Let the launcher prepare for the next pool owner now."""
        self._launcher.prepare(self._patience)

    def close(self) -> None:
        super().close()
        self._launcher.close()

    def _make_processes(self) -> None:
        started_s = time.monotonic()
        pool = self._pool = self._launcher.owner(self._patience)
        self._known |= {each.model: each for each in pool.load(self._spec)}
        self._selector.register(pool.control, selectors.EVENT_READ, pool)
        for name in self._ids:
            if name not in self._known:
                self._make_move(name, MoveKind.WAKE)
                self._make_move(name, MoveKind.PARK)
        residents = resident_at_start(self._spec)
        for name in residents:
            self._make_move(name, MoveKind.WAKE)
        self.backends = tuple(self._known[model.name] for model in self._spec.models)
        now = time.monotonic()
        self._prepare_s = now + SETTLED_S
        logger.info(
            "%s: ready after %.1f s; resident: %s",
            self._spec.unit_id,
            now - started_s,
            ", ".join(residents) or "none",
        )

    def _make_move(self, name: str, kind: MoveKind) -> None:
        """Move a model before the unit is ready. Raises LoadError, or EngineFailure."""
        self._refusal = None
        self.move(Move(_OWN_MOVE, name, kind))
        is_done = False
        while not is_done:
            for outcome in self.wait(None):
                if isinstance(outcome, MoveFailed):
                    raise self._refusal or EngineFailure(outcome.message)
                if isinstance(outcome, ModelLost | OwnerLost):
                    raise EngineFailure(outcome.message)
                is_done |= isinstance(outcome, Moved)

    def _prepare_in_time(self, now: float) -> None:
        """Prepare when nothing runs, or in any case after a while."""
        is_busy = any(link.workers.is_busy for link in self._links.values())
        if now > self._prepare_s + (MOST_PREPARING_S if is_busy else 0.0):
            self._prepare_s = now + SETTLED_S
            self.prepare()

    def _link(self, name: str) -> ModelLink:
        """Fork the model's owner. Raises as the calls of `ForkStream`."""
        assert self._pool is not None, "not started"
        care = replace(self._care, losses=self._model_losses[name])
        link = ModelLink(self._spec, self._ids[name], self._plan, self._pool.forks, care)
        self._selector.register(link.control, selectors.EVENT_READ, link)
        return link

    def _hear_worker(self, worker: RungWorker) -> Sequence[Outcome]:
        # Not in the dictionary: a link whose worker was let go in this turn.
        links = [link for link in self._links.values() if link.workers is worker.workers]
        return self._guarded(links[0], worker.hear) if links else ()

    def _guarded(self, link: ModelLink, call: Callable[[], Sequence[Outcome]]) -> Sequence[Outcome]:
        """Return the outcomes of `call`, or of the loss of the model that it found out."""
        try:
            return call()
        except TimeoutError:
            return self._lose_model(link, "hung")
        except GONE:
            return self._lose_model(link, "died")
        except EngineFailure as error:  # too many losses
            self._give_up(link.name, str(error))
            return self._lose_model(link, "is given up")

    def _hear_owner(self, link: ModelLink) -> Sequence[Outcome]:
        """Take a model owner's answer, or its end."""
        if self._links.get(link.name) is not link:
            return ()  # lost in this turn
        if link.state is LinkState.ENDING:
            return self._parked(link)
        if link.state is not LinkState.LOADING:
            return self._lose_model(link, "died")
        try:
            backend = link.loaded()
            if self._known.setdefault(link.name, backend) != backend:
                path = self._spec.models[link.model_id].path
                raise LoadError(path, "its files are not those that the unit started with")
        except LoadError as error:
            self._end(link)
            return [self._failed(error, is_final=True)]
        except EngineFailure as error:
            self._count_loss(link.name)
            self._end(link)
            is_final = self._given_up.pop(link.name, None) is not None
            return [self._failed(error, is_final=is_final)]
        return self._guarded(link, link.start_workers)

    def _woken(self) -> Sequence[Outcome]:
        """Return the end of a wake whose workers all take jobs now."""
        move = self._move
        if move is None or move.kind is MoveKind.PARK:
            return ()
        link = self._links.get(move.model)
        if link is None or link.state is not LinkState.STARTING or link.workers.has_doubts:
            return ()
        link.state = LinkState.SERVING
        return [self._moved(self._known[move.model])]

    def _parked(self, link: ModelLink) -> Sequence[Outcome]:
        self._end(link)
        return [self._moved(None)]

    def _moved(self, backend: ModelBackend | None) -> Moved:
        move = self._ended_move()
        return Moved(move.move_id, time.monotonic() - self._move_start_s, backend)

    def _failed(self, error: LoadError | EngineFailure, *, is_final: bool) -> MoveFailed:
        move = self._ended_move()
        self._refusal = error
        logger.warning("%s: %s did not wake: %s", self._spec.unit_id, move.model, error)
        return MoveFailed(move.move_id, str(error), is_final)

    def _ended_move(self) -> Move:
        move, self._move = self._move, None
        assert move is not None, "no move"
        return move

    def _lose_model(self, link: ModelLink, how: str) -> Sequence[Outcome]:
        """End what is left of a model whose owner is lost."""
        name, message = link.name, f"the owner of {link.name} {how}"
        failed = link.lose(message)
        is_moving = self._move is not None and self._move.model == name
        if link.state is LinkState.ENDING:
            return self._parked(link)
        self._end(link)
        if name not in self._given_up:
            self._count_loss(name)
        if is_moving:
            is_final = self._given_up.pop(name, None) is not None
            return [self._failed(EngineFailure(message), is_final=is_final)]
        logger.warning("%s: %s", self._spec.unit_id, message)
        return [*failed, ModelLost(name, message)]

    def _count_loss(self, name: str) -> None:
        try:
            self._model_losses[name].owner_lost(time.monotonic())
        except EngineFailure as error:
            self._give_up(name, str(error))

    def _give_up(self, name: str, message: str) -> None:
        """Let the next wake fail for good; the one after that begins with a clean record."""
        self._given_up[name] = message
        self._model_losses[name] = self._new_losses(name)

    def _new_losses(self, name: str) -> LossLedger:
        return LossLedger(f"{name} of {self._spec.unit_id}")

    def _end(self, link: ModelLink) -> None:
        """End a model's processes and forget them. Raises _PoolLost."""
        self._drop(link)
        self._ask_pool(link.end)

    def _drop(self, link: ModelLink) -> None:
        del self._links[link.name]
        self._selector.unregister(link.control)
        link.close()

    def _ask_pool(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. Raises _PoolLost if the pool owner is lost."""
        try:
            return call()
        except TimeoutError as error:
            raise _PoolLost("hung") from error
        except GONE as error:
            raise _PoolLost("died") from error

    def _beat(self) -> Sequence[Outcome]:
        """Take every pulse; replace workers, and report owners, that hang. Raises _PoolLost."""
        assert self._pool is not None, "not started"
        self._pool.pulse.beat(is_busy=False)
        if self._pool.pulse.is_silent:
            raise _PoolLost("hung")
        now = time.monotonic()
        outcomes: list[Outcome] = []
        for link in list(self._links.values()):
            if link.is_hung(now):
                outcomes.extend(self._lose_model(link, "hung"))
            else:
                outcomes.extend(self._guarded(link, link.workers.beat))
        self._is_doubtful = self._has_doubts()
        if self._are_working():
            outcomes.append(StillRunning())
        return outcomes

    def _are_working(self) -> bool:
        """Return whether something runs and all that take part show signs of life."""
        links = self._links.values()
        busy = [link.workers.is_working for link in links if link.workers.is_busy]
        moving = [not link.has_missed for link in links if link.state is not LinkState.SERVING]
        return bool(busy or moving) and all(busy) and all(moving)

    def _has_doubts(self) -> bool:
        assert self._pool is not None, "not started"
        return self._pool.pulse.is_doubtful or any(link.has_doubts for link in self._links.values())

    def _lose_pool(self, how: str) -> OwnerLost:
        return self._lose_all(f"the pool owner of {self._spec.unit_id} {how}")

    def _kill_processes(self) -> None:
        pool = self._pool
        if pool is not None:
            pool.kill()

    def _drop_processes(self) -> None:
        for link in list(self._links.values()):
            self._drop(link)
        self._move = self._lost = None
        self._pending.clear()
        if self._pool is not None:
            if self._pool.control in self._selector.get_map():
                self._selector.unregister(self._pool.control)
            self._pool.kill()  # it holds nothing that must be released, nor do its children
            self._pool.stop()
            self._pool = None
        self._launcher.release()
