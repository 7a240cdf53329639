"""Drives a scheduler whose weights do not fit together, with an oracle of its own for them."""

import random
from collections.abc import Sequence
from dataclasses import replace

from muxcluster.core.events import Finished, Rejected, StepOutput
from muxcluster.core.job import Job
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.residency import Move, MoveKind, Residency, WeightOrder
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from tests.scheduling.fake_worker import FakeMemory
from tests.scheduling.rig import Rig, model_spec, unit_spec

NAMES = "abcdef"
WAKE_S = 0.2
PARK_S = 0.01
SPREAD = 0.2  # of the seconds of a move


def weighed(name: str, num_bytes: int = 1, **changes) -> ModelSpec:
    """A small model whose weights take so many bytes."""
    fields = {"residency": Residency.AUTO, "resident_bytes": num_bytes, "wake_s": WAKE_S}
    return model_spec(name, **{**fields, **changes})


def tight_spec(models: Sequence[ModelSpec], room: int, **policy) -> UnitSpec:
    """A unit with room for so many bytes of weights."""
    return replace(unit_spec(models, **policy), resident_bytes=room)


class TightRig(Rig):
    """A rig with weights that move, which knows by itself where they are.

    Asserts at each move that it may be made, and that a model with interactive requests stays.
    """

    def __init__(self, spec: UnitSpec, seed: int = 0, *, failing: float = 0.0, **kwargs) -> None:
        """failing: probability that a move fails."""
        super().__init__(spec, seed, **kwargs)
        self.resident = set(self.scheduler.resident_at_start())
        self.moving: tuple[float, Move] | None = None
        self.moves: list[tuple[float, Move]] = []  # with the time at which each began
        self.waits_since: dict[str, float] = {}  # models that requests wait for, and since when
        self.longest_wait_s = dict.fromkeys(NAMES, 0.0)  # until such a model was resident
        self.asked: dict[str, Request] = {}
        self.open: dict[str, set[str]] = {model.name: set() for model in spec.models}
        self.orders: dict[str, WeightOrder] = {}  # the last one of each model
        self._failing = failing
        self._spec_of = {model.name: model for model in spec.models}
        self._woken_s: dict[str, float] = {}
        self._moves_rng = random.Random(f"moves {seed}")

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.asked[each.request_id] = each
            self.open[each.model].add(each.request_id)
        super().add(*requests)

    def take(self, output: StepOutput | None) -> None:
        super().take(output)
        for event in () if output is None else output.events:
            if isinstance(event, Finished | Rejected):
                self.open[self.asked[event.request_id].model].discard(event.request_id)

    def order(self, model: str, order: WeightOrder) -> None:
        """An operator's order. Raises as the scheduler."""
        self.scheduler.request_move(model, order, self.now)
        before = self.orders.get(model)
        if order is WeightOrder.UNPIN and before is not WeightOrder.PIN:
            return
        if order is WeightOrder.EXPECT and before is WeightOrder.HOLD:
            return
        if order in (WeightOrder.WAKE, WeightOrder.EXPECT) and before is WeightOrder.PIN:
            return
        self.orders[model] = order
        self.check()

    def kinds(self, model: str) -> list[MoveKind]:
        """Its moves, in order."""
        return [move.kind for _, move in self.moves if move.model == model]

    def launch(self) -> list[Job]:
        for move in self.scheduler.next_moves(self.now):
            self._begin(move)
        self._note_waits()
        jobs = super().launch()
        for _, job in self.running:
            assert job.model in self.resident, f"a job of {job.model} has no weights"
        return jobs

    def _begin(self, move: Move) -> None:
        assert self.moving is None, "two moves at a time"
        assert all(job.model != move.model for _, job in self.running), "a job still runs"
        assert (move.model in self.resident) is (move.kind is MoveKind.PARK), "no such move"
        spec = self._spec_of[move.model]
        order = self.orders.get(move.model)
        if move.kind is MoveKind.PARK:
            assert spec.residency is not Residency.ALWAYS, "it must always be resident"
            assert order is not WeightOrder.PIN, f"{move.model} is pinned"
            if order not in (WeightOrder.PARK, WeightOrder.HOLD):
                self._check_stay(move.model)
            self.resident.discard(move.model)
        else:
            assert order is not WeightOrder.HOLD, f"{move.model} is held"
        whole_s = spec.wake_s if move.kind is MoveKind.WAKE else PARK_S
        seconds = whole_s * self._moves_rng.uniform(1 - SPREAD, 1 + SPREAD)
        self.moving = self.now + seconds, move
        self.moves.append((self.now, move))
        held = sum(self._spec_of[name].resident_bytes for name in {*self.resident, move.model})
        assert held <= self.spec.resident_bytes, f"{held} bytes of weights"

    def _check_stay(self, model: str) -> None:
        """A model that woke for interactive requests stays for twice what its wake took."""
        woken_s = self._woken_s.get(model, -float("inf"))
        waited = [name for name in self.open[model] if self.add_s[name] <= woken_s]
        classes = {self.asked[name].service_class for name in waited}
        stayed_s = self.now - woken_s
        least_s = 2 * (1 - SPREAD) * self._spec_of[model].wake_s
        is_used = ServiceClass.INTERACTIVE in classes
        assert not is_used or stayed_s >= least_s - 1e-9, f"{model} stayed for {stayed_s} s"

    def _note_waits(self) -> None:
        waiting = {model for model, names in self.open.items() if names}
        for model in waiting - self.resident:
            self.waits_since.setdefault(model, self.now)
        for model, since_s in tuple(self.waits_since.items()):
            wait_s = self.now - since_s
            self.longest_wait_s[model] = max(self.longest_wait_s[model], wait_s)
            if model in self.resident or model not in waiting:
                del self.waits_since[model]

    def end_move(self, *, fails: bool = False, is_final: bool = False) -> Move:
        """The move under way ends."""
        assert self.moving is not None
        end_s, move = self.moving
        self.now = max(self.now, end_s)
        self.moving = None
        if (move.kind is MoveKind.WAKE) is not fails:
            self.resident.add(move.model)
        if fails:
            cause = "the test failed it"
            self.take(self.scheduler.move_failed(move, self.now, cause, is_final=is_final))
        else:
            if move.kind is MoveKind.WAKE:
                self._woken_s[move.model] = self.now
            self.take(self.scheduler.moved(move, self.now - self.moves[-1][0], self.now))
        self._note_waits()
        self.check()
        return move

    def lose(self, model: str) -> None:
        """The processes of a resident model are gone, with its jobs."""
        if model not in self.resident:
            return
        now = self.now
        while mine := [job for _, job in self.running if job.model == model]:
            self.running = [(now if job in mine else end_s, job) for end_s, job in self.running]
            self.fail(mine[0])
        self._refuse()
        self.resident.discard(model)
        self._woken_s.pop(model, None)
        self.take(self.scheduler.lose_model(model, now))
        self.check()

    def reset(self) -> None:
        self.running.clear()
        self.refused.clear()
        self._early.clear()
        self.memory = FakeMemory(self.spec)
        self.resident = set(self.scheduler.resident_at_start())
        self.moving = None
        self._woken_s.clear()
        self.take(self.scheduler.reset(self.now, "the test reset it"))
        self.check()

    def check_asleep(self) -> None:
        if self.spec.scheduler.wakes == "foresight":  # it looks again when rates may have changed
            self.launch()
            wakeup_s = self.scheduler.next_wakeup(self.now)
            assert wakeup_s is None or wakeup_s > self.now or self.moving
        else:
            super().check_asleep()

    def settle(self, seconds: float = 60.0) -> None:
        """For a while, or until nothing happens any more."""
        end_s = self.now + seconds
        while self.now < end_s:
            before = (self.now, len(self.moves), self.moving, len(self.running))
            self.step()
            if before == (self.now, len(self.moves), self.moving, len(self.running)):
                return

    def step(self) -> None:
        """Launch, then what comes first: the end of a job, of a move, or the time of a turn."""
        self.launch()
        job_s = self.running[0][0] if self.running else float("inf")
        move_s = self.moving[0] if self.moving else float("inf")
        wakeup_s = self.scheduler.next_wakeup(self.now)
        turn_s = float("inf") if wakeup_s is None else max(wakeup_s, self.now + 0.001)
        first_s = min(job_s, move_s, turn_s)
        held = {model for model, order in self.orders.items() if order is WeightOrder.HOLD}
        is_free = any(names for model, names in self.open.items() if model not in held)
        assert first_s < float("inf") or not is_free, "requests wait and nothing happens"
        if first_s == float("inf"):
            return
        if first_s == job_s:
            self.finish()
        elif first_s == move_s:
            self.end_move(fails=self._moves_rng.random() < self._failing)
        else:
            self.now = max(self.now, first_s)
        self._note_waits()


def run_to_a_wake(rig: TightRig) -> None:
    """Until a wake is under way."""
    for _ in range(100):
        rig.launch()
        if rig.moving is not None and rig.moving[1].kind is MoveKind.WAKE:
            return
        rig.step()
    raise AssertionError("nothing wakes")
