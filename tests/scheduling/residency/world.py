"""Drives a scheduler whose weights do not fit together, with an oracle of its own for them."""

import random
from collections.abc import Sequence
from dataclasses import replace

from muxcluster.core.job import Job
from muxcluster.core.request import Request
from muxcluster.core.residency import Move, MoveKind, Residency
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from tests.scheduling.fake_worker import FakeMemory
from tests.scheduling.rig import Rig, model_spec, unit_spec

NAMES = "abcdef"
WAKE_S = 0.2


def weighed(name: str, gib: int = 1, **changes) -> ModelSpec:
    """A small model whose weights count as so many bytes."""
    fields = {"residency": Residency.AUTO, "resident_bytes": gib, "wake_s": WAKE_S, **changes}
    return model_spec(name, **fields)


def tight_spec(models: Sequence[ModelSpec], room: int, **policy) -> UnitSpec:
    """A unit with room for so many bytes of weights."""
    return replace(unit_spec(models, **policy), resident_bytes=room)


class TightRig(Rig):
    """A rig with weights that move; it knows by itself where they are.

    Moves fail with probability `failing`.
    """

    def __init__(self, spec: UnitSpec, seed: int = 0, *, failing: float = 0.0, **kwargs) -> None:
        super().__init__(spec, seed, **kwargs)
        self.resident = set(self.scheduler.resident_at_start())
        self.moving: tuple[float, Move] | None = None
        self.moves: list[tuple[float, Move]] = []  # with the time at which each began
        self.failing = failing
        self.waits_since: dict[str, float] = {}  # models that requests wait for, and since when
        self.longest_wait_s = 0.0  # until such a model was resident
        self.model_of: dict[str, str] = {}
        self._bytes = {model.name: model.resident_bytes for model in spec.models}
        self._wake_s = {model.name: model.wake_s for model in spec.models}
        self._moves_rng = random.Random(f"moves {seed}")

    @property
    def taken(self) -> set[str]:
        """Models whose weights have memory."""
        return self.resident | ({self.moving[1].model} if self.moving else set())

    def add(self, *requests: Request) -> None:
        super().add(*requests)
        self.model_of.update({each.request_id: each.model for each in requests})

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
        assert (move.model in self.resident) == (move.kind is MoveKind.PARK), "no such move"
        if move.kind is MoveKind.PARK:
            self.resident.discard(move.model)
        seconds = self._wake_s[move.model] if move.kind is MoveKind.WAKE else 0.01
        self.moving = self.now + seconds * self._moves_rng.uniform(0.8, 1.2), move
        self.moves.append((self.now, move))
        held = sum(self._bytes[name] for name in self.taken)
        assert held <= self.spec.resident_bytes, f"{held} bytes of weights"

    def _note_waits(self) -> None:
        open_models = {self.model_of[name] for name in self.model_of if name not in self.ends}
        for model in open_models - self.resident:
            self.waits_since.setdefault(model, self.now)
        for model in tuple(self.waits_since):
            if model in self.resident or model not in open_models:
                wait_s = self.now - self.waits_since.pop(model)
                self.longest_wait_s = max(self.longest_wait_s, wait_s)

    def end_move(self, *, fails: bool = False, is_final: bool = False) -> None:
        """The move under way ends."""
        assert self.moving is not None
        end_s, move = self.moving
        begun_s = self.moves[-1][0]
        self.now = max(self.now, end_s)
        self.moving = None
        is_wake = move.kind is MoveKind.WAKE
        if fails:
            if not is_wake:
                self.resident.add(move.model)
            out = self.scheduler.move_failed(
                move, self.now, "the test failed it", is_final=is_final
            )
        else:
            if is_wake:
                self.resident.add(move.model)
            out = self.scheduler.moved(move, self.now - begun_s, self.now)
        self.take(out)
        self._note_waits()
        self.check()

    def lose(self, model: str) -> None:
        """The processes of a model are gone, with its jobs."""
        if model not in self.resident:
            return
        now = self.now
        for _, job in list(self.running):
            if job.model == model and any(each is job for _, each in self.running):
                self.running = [(now if j is job else end_s, j) for end_s, j in self.running]
                self.fail(job)
        self._refuse()
        self.resident.discard(model)
        self.take(self.scheduler.lose_model(model, self.now, "the test lost it"))
        self.check()

    def reset(self) -> None:
        self.running.clear()
        self.refused.clear()
        self._early.clear()
        self.memory = FakeMemory(self.spec)
        self.resident = set(self.scheduler.resident_at_start())
        self.moving = None
        self.take(self.scheduler.reset(self.now, "the test reset it"))
        self.check()

    def step(self) -> None:
        """Launch, then what comes first: the end of a job, of a move, or time to look again."""
        self.launch()
        ends_s = [self.running[0][0]] if self.running else []
        move_s = [self.moving[0]] if self.moving else []
        wakeup_s = self.scheduler.next_wakeup(self.now)
        wakeups = [max(wakeup_s, self.now + 0.001)] if wakeup_s is not None else []
        if not (ends_s or move_s or wakeups):
            assert not self.num_open, "requests wait and nothing runs"
            return
        first_s = min(ends_s + move_s + wakeups)
        if move_s == [first_s]:
            fails = self._moves_rng.random() < self.failing
            self.end_move(fails=fails)
        elif ends_s == [first_s]:
            self.finish()
        else:
            self.now = max(self.now, first_s)
        self._note_waits()
