"""The moves of a unit's weights: what to start now, and what follows from how they ended."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from muxcluster.core.errors import MoveRefused
from muxcluster.core.residency import Move, MoveKind, Residency, WeightOrder, WeightState
from muxcluster.core.served import ModelStats
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.residency.policy import Room, Standing, Turn, WakePolicy
from muxcluster.scheduling.residency.weights import Weights
from muxcluster.scheduling.shares import ShareLedger
from muxcluster.scheduling.state.model import ModelState


def resident_at_start(spec: UnitSpec) -> tuple[str, ...]:
    """Return the models whose weights are on the devices when the unit starts.

    Those that always are, then "auto" ones by falling rate, as far as each fits; all where
    the unit has room for all (`resident_bytes` 0).
    """
    if not spec.resident_bytes:
        return tuple(model.name for model in spec.models)
    names, left = [], spec.resident_bytes
    by_rate = sorted(spec.models, key=lambda model: -model.rate_per_s)
    for kind in (Residency.ALWAYS, Residency.AUTO):
        for model in by_rate:
            if model.residency is kind and model.resident_bytes <= left:
                names.append(model.name)
                left -= model.resident_bytes
    return tuple(names)


def check_room(models: Sequence[ModelSpec], room: int) -> None:
    """Raise ValueError where a model cannot be resident beside those that always are."""
    always = sum(m.resident_bytes for m in models if m.residency is Residency.ALWAYS)
    if always > room:
        raise ValueError(f"models that are always resident take {always} bytes of {room}")
    for model in models:
        if model.resident_bytes <= 0:
            raise ValueError(f"nothing says how many resident_bytes {model.name!r} has")
        left = room if model.residency is Residency.ALWAYS else room - always
        if model.resident_bytes > left:
            raise ValueError(
                f"{model.name!r} takes {model.resident_bytes} bytes while it is resident, and "
                f"there are {left}"
            )


class _Running(NamedTuple):
    move: Move
    weights: Weights
    start_s: float


class WeightMoves:
    """Starts moves as the policy says, one at a time.

    Invariants: the memory of resident models, of models on their way and of those that must always
    be resident is at most `room`; a model that is not resident has no rows and no running job.
    """

    def __init__(
        self,
        spec: UnitSpec,
        models: Sequence[ModelState],
        memory: Memory,
        shares: ShareLedger,
        policy: WakePolicy,
    ) -> None:
        """Raises ValueError where a model is larger than the room that it may have."""
        check_room(spec.models, spec.resident_bytes)
        self.room = spec.resident_bytes
        self.policy = policy
        self._start = resident_at_start(spec)
        self._memory = memory
        self._shares = shares
        ageing_s = spec.scheduler.ageing_s
        self._all = [Weights(model, policy, ageing_s) for model in models]
        self._of = {each.name: each for each in self._all}
        self._running: _Running | None = None
        self._promised: str | None = None  # the model that has its turn
        self._has_victims = False
        self._ahead_s = -math.inf  # when policy.ahead may have another answer
        self._num_moves = 0
        self.next_s = -math.inf  # when time alone may change what `next_moves` says
        for name in self._start:
            self._of[name].arrive(-math.inf)
        self.runnable = self._find_runnable()  # models whose jobs may start
        self.awake = self._find_awake()  # models that are resident, on their way, or always

    def of(self, name: str) -> Weights:
        """Return the weights of a model. Raises KeyError for an unknown one."""
        return self._of[name]

    def refuses(self, name: str) -> bool:
        """True where requests to a model are refused, as it is not resident."""
        return self.policy.refuses_absent and not self._of[name].is_resident

    def next_moves(self, now: float) -> list[Move]:
        """Return the move to start now, if any; call it before jobs are chosen.

        Rows of a model that is to be parked are queued again.
        """
        if now < self.next_s:
            return []
        may_wake_ahead = self._running is None and now >= self._ahead_s
        if not (self.has_work or self._has_victims or may_wake_ahead):
            self.next_s = self._ahead_s if self._running is None else math.inf
            return []
        moves: list[Move] = []
        while True:
            standings, free = [each.standing(now) for each in self._all], self._free()
            turn = self.policy.turn(standings, free, now, self._promised)
            self._promised = turn.wake
            self._clear_the_way(turn, now)
            self.next_s = min(turn.next_s, self._next_change_s(now))
            if self._running is not None:
                return moves
            move = self._move_for(turn, standings, free, now)
            if move is None:
                return moves
            moves.append(move)  # the way for the next model is cleared meanwhile

    def _free(self) -> int:
        """Bytes that nobody has or is promised; those that are being given up are free."""
        taken = sum(each.num_bytes for each in self._all if each.is_awake)
        return self.room - taken

    def _clear_the_way(self, turn: Turn, now: float) -> None:
        """Let victims admit nothing more, and start no more jobs where they need not be drained."""
        self._has_victims = bool(turn.victims)
        has_changed = False
        for each in self._all:
            if not each.is_resident:
                continue
            was_leaving = each.is_leaving
            if each.name in turn.victims or (each.must_leave and now >= each.retry_s):
                each.drain(now)
                each.is_leaving |= not each.num_interactive_rows or now >= each.drained_s()
            elif each.drains_since_s < math.inf:
                each.stay()
            has_changed |= each.is_leaving is not was_leaving
        if has_changed:
            self.runnable = self._find_runnable()

    def _next_change_s(self, now: float) -> float:
        """When a drain ends, or a move that failed may be tried again."""
        times_s = [each.retry_s for each in self._all if each.is_claimed or each.is_resident]
        times_s += [each.drained_s() for each in self._all if not each.is_leaving]
        return min((each for each in times_s if each > now), default=math.inf)

    def _move_for(
        self, turn: Turn, standings: Sequence[Standing], free: int, now: float
    ) -> Move | None:
        busy = {job.model for job in self._shares.running}
        leaving = [each for each in self._all if each.is_leaving and each.name not in busy]
        for each in leaving:
            if each.must_leave:
                return self._begin(MoveKind.PARK, each, now)
        if turn.wake is not None and not turn.victims:
            return self._begin(MoveKind.WAKE, self._of[turn.wake], now)
        for name in turn.victims:
            if self._of[name] in leaving:
                return self._begin(MoveKind.PARK, self._of[name], now)
        if turn.wake is not None or any(each.is_claimed for each in self._all):
            return None
        return self._move_ahead(self.policy.ahead(standings, free, self.room, now), busy, now)

    def _move_ahead(self, turn: Turn, busy: Collection[str], now: float) -> Move | None:
        if turn.wake is None:
            self._ahead_s = turn.next_s
            self.next_s = min(self.next_s, self._ahead_s)
            return None
        for name in turn.victims:
            if name not in busy:
                return self._begin(MoveKind.PARK, self._of[name], now)
        if turn.victims:  # of an ended request, a job runs still
            return None
        return self._begin(MoveKind.WAKE, self._of[turn.wake], now, is_ahead=True)

    def _begin(self, kind: MoveKind, each: Weights, now: float, *, is_ahead: bool = False) -> Move:
        move = Move(self._num_moves, each.name, kind)
        self._num_moves += 1
        self._running = _Running(move, each, now)
        if kind is MoveKind.PARK:
            self._memory.give_up(each.model, now)
        each.begin(kind, now, is_ahead=is_ahead)
        self._changed()
        return move

    @property
    def is_watching(self) -> bool:
        """True if time alone may have a model woken that nothing waits for."""
        return self.policy.foresees and self._ahead_s < math.inf

    @property
    def has_work(self) -> bool:
        """True if weights should move, for requests, by an order, or as they must be resident."""
        return any(each.is_claimed or each.must_leave for each in self._all)

    def request(self, name: str, order: WeightOrder, now: float) -> None:
        """Follow an operator's order from the next turn on. Raises MoveRefused."""
        each = self._of[name]
        if self.policy.refuses_absent:
            raise MoveRefused(f"weights of {name} are not moved: this unit parks nothing")
        if order in (WeightOrder.PARK, WeightOrder.HOLD):
            if each.residency is Residency.ALWAYS:
                raise MoveRefused(f"{name} always stays resident (models[].residency)")
            if each.order is WeightOrder.PIN:
                raise MoveRefused(f"{name} is pinned: unpin it first")
        if order is WeightOrder.PIN:
            self._check_pin(each)
        each.obey(order, now)
        self._changed()

    def _check_pin(self, pinned: Weights) -> None:
        """Raise MoveRefused where another model could never wake beside what stays."""
        stays = [each for each in self._all if each.stays or each is pinned]
        left = self.room - sum(each.num_bytes for each in stays)
        others = [each for each in self._all if each not in stays]
        largest = max(others, key=lambda each: each.num_bytes, default=None)
        if left < (0 if largest is None else largest.num_bytes):
            need = "" if largest is None else f", and {largest.name} takes {largest.num_bytes}"
            message = f"pinning {pinned.name} would leave {left} bytes for other weights{need}"
            raise MoveRefused(message)

    def moved(self, move: Move, seconds: float, now: float) -> None:
        """Note that a move ended well; one that a reset forgot is ignored."""
        if not self._ends(move):
            return
        each = self._of[move.model]
        if move.kind is MoveKind.WAKE:
            each.arrive(now, seconds)
            if self._promised == move.model:
                self._promised = None
        else:
            each.park(now)
        self._changed()

    def failed(self, move: Move, now: float, cause: str, *, is_final: bool) -> bool:
        """Note that a move failed; return True where the model can never be resident.

        is_final: it would always fail. A park that fails is tried again all the same: its model
        is resident and serves until then.
        """
        if not self._ends(move):
            return False
        each = self._of[move.model]
        if move.kind is MoveKind.WAKE and self._promised == move.model:
            self._promised = None  # others have their turn before it is tried again
        each.fail(move.kind, now)
        is_over = is_final and move.kind is MoveKind.WAKE
        if is_over:
            each.give_up(cause, now)
        self._changed()
        return is_over

    def lose(self, name: str, now: float) -> None:
        """Note that the processes of a resident model are gone; its rows are queued again.

        None of its jobs runs. Ignored for a model on its way: its move will fail. Raises KeyError
        for an unknown one.
        """
        each = self._of[name]
        if not each.is_resident:
            return
        assert all(job.model != name for job in self._shares.running), f"jobs of {name} run"
        self._memory.give_up(each.model, now)
        each.lose(now)
        self._changed()

    def fitting(self, resident: Collection[str] | None) -> frozenset[str]:
        """Return models that are resident after a loss of all memory; None: those of the start.

        Raises ValueError where they do not fit beside those that always are resident, KeyError for
        an unknown one.
        """
        names = frozenset(self._start if resident is None else resident)
        kept = names | {e.name for e in self._all if e.residency is Residency.ALWAYS}
        if sum(self._of[name].num_bytes for name in kept) > self.room:
            raise ValueError(f"{sorted(kept)} cannot be resident together")
        return names

    def reset(self, now: float, names: frozenset[str]) -> None:
        """Begin again with `names` resident, see `fitting`; no model has rows or running jobs.

        A running move is forgotten.
        """
        self._running = self._promised = None
        for each in self._all:
            if each.name in names:
                each.arrive(now)
            elif each.state is not WeightState.COLD:
                each.park(now)
        self._changed()

    def told(self, stats: ModelStats, now: float) -> ModelStats:
        """Return `stats` of a model with what is known of its weights."""
        each, outlook = self._of[stats.name], self.outlook(stats.name, now)
        return replace(
            stats,
            weights=each.state.value,
            num_wakes=each.num_wakes,
            num_parks=each.num_parks,
            waking_s=each.waking_s,
            num_wakes_ahead=each.num_ahead,
            num_wakes_ahead_used=each.num_ahead_used,
            resident_bytes=each.num_bytes,
            parked_bytes=each.parked_bytes,
            expected_wait_s=outlook.wait_s,
            wake_cost_s=outlook.cost_s,
            order="" if each.order is None else each.order.value,
        )

    def outlook(self, name: str, now: float) -> Room:
        """Return what a new request for a model would wait for its weights, and cost others.

        The move under way, the wakes that come before, memory in use, and its own wake. Where a
        request waits for them already, another one costs nothing more.
        """
        each = self._of[name]
        if each.is_resident and each.drains_since_s == math.inf:
            return Room(0.0, 0.0)
        wait_s = 0.0
        if self._running is not None:
            wakes = self._running.move.kind is MoveKind.WAKE
            whole_s = self._running.weights.wake_s if wakes else 0.0
            wait_s = max(0.0, self._running.start_s + whole_s - now)
            if wakes and self._running.weights is each:
                return Room(wait_s, 0.0)
        standings = {other.name: other.standing(now) for other in self._all}
        mine = standings.pop(name)
        # the new request is due after its model's target, if none waits already
        due_s = mine.due_s if mine.due_s < math.inf else now + mine.target_s
        before = [
            other.wake_s
            for other in standings.values()
            if other.state is WeightState.PARKED and other.due_s < math.inf
            if other.due_s <= due_s
        ]
        room = self.policy.room_for(mine, tuple(standings.values()), self._free(), now)
        cost_s = 0.0 if each.is_claimed else room.cost_s
        return Room(wait_s + sum(before) + room.wait_s + each.wake_s, cost_s)

    def touch(self) -> None:
        """Look again in the next turn: requests came, ended or were preempted."""
        self.next_s = -math.inf
        if self.policy.foresees:
            self._ahead_s = -math.inf

    def ran(self, name: str, now: float) -> None:
        """Note that a job of a model ended; nothing else may have changed by it."""
        each = self._of[name]
        each.use(now)
        if each.is_leaving or not each.has_token:
            self.touch()

    def _ends(self, move: Move) -> bool:
        if self._running is None or self._running.move != move:
            return False
        self._running = None
        return True

    def _changed(self) -> None:
        self._ahead_s = -math.inf
        self.touch()
        self.runnable, self.awake = self._find_runnable(), self._find_awake()

    def _find_runnable(self) -> tuple[ModelState, ...]:
        return tuple([each.model for each in self._all if each.may_run])

    def _find_awake(self) -> frozenset[str]:
        return frozenset([each.name for each in self._all if each.is_awake])

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        taken = sum(each.num_bytes for each in self._all if each.reserves)
        assert taken <= self.room, f"weights take {taken} bytes of {self.room}"
        assert self.runnable == self._find_runnable(), "jobs of other models may start"
        assert self.awake == self._find_awake(), "quotas follow other models"
        moving = [e for e in self._all if e.state in (WeightState.WAKING, WeightState.PARKING)]
        running = [] if self._running is None else [self._running.weights]
        assert moving == running, "a move is forgotten, or two run"
        for each in self._all:
            each.check()
        for job in self._shares.running:
            assert self._of[job.model].is_resident, f"job {job.job_id} has no weights"
