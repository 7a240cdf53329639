"""Several units over one executor, each with a worker and a part of the KV pool to itself.

So the models of a static split have their own schedulers, on the same process partition as a unit
that multiplexes them.
"""

import queue
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import (
    Executor,
    JobDone,
    Outcome,
    OwnerLost,
    StillRunning,
)


@dataclass(frozen=True, slots=True)
class _Launched:
    """Whose job it is, and how that unit calls it."""

    side: int
    job_id: int


class Split:
    """Started and closed as a context; `sides` are the units' executors, in their order.

    One thread launches and waits, because an executor wants both from the same one.
    """

    def __init__(self, executor: Executor, units: Sequence[UnitSpec]) -> None:
        """executor: of a unit of all models, whose i-th worker runs the i-th unit's jobs."""
        first, sides = 0, []
        for index, unit in enumerate(units):
            sides.append(Side(self, index, first, {model.name for model in unit.models}))
            first += unit.num_blocks
        self.sides = tuple(sides)
        self._executor = executor
        self._new: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
        self._running: dict[int, _Launched] = {}
        self._ids = count()
        self._last: dict[int, int] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="split", daemon=True)

    def __enter__(self) -> "Split":
        """Raises as Executor.start."""
        try:
            self._executor.start()
        except BaseException:
            self._executor.close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._executor.wake()
        self._thread.join()
        self._executor.close()

    def launch(self, side: int, job: Job) -> None:
        """From any thread."""
        self._new.put((side, job))
        self._executor.wake()

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """As the one executor."""
        return self._executor.backends

    @property
    def is_recovering(self) -> bool:
        """As the one executor."""
        return self._executor.is_recovering

    def _run(self) -> None:
        try:
            while not self._is_closing:
                while not self._new.empty():
                    self._start(*self._new.get())
                for outcome in self._executor.wait(None):
                    self._settle(outcome)
        except EngineFailure as error:
            for side in self.sides:
                side.hear(OwnerLost(str(error)))

    def _start(self, side: int, job: Job) -> None:
        new_id = next(self._ids)
        # A side has one worker, so what a job follows is the last one that went to it.
        follows = None if job.follows is None else self._last[side]
        self._last[side] = new_id
        self._running[new_id] = _Launched(side, job.job_id)
        blocks = job.tables.blocks + self.sides[side].first_block
        tables = replace(job.tables, blocks=blocks)
        mine = replace(job, job_id=new_id, worker_id=side, tables=tables, follows=follows)
        self._executor.launch(mine)

    def _settle(self, outcome: Outcome) -> None:
        if isinstance(outcome, StillRunning | OwnerLost):
            for side in self.sides:
                side.hear(outcome)
        elif isinstance(outcome, JobDone):
            launched = self._running.pop(outcome.result.job_id)
            result = replace(outcome.result, job_id=launched.job_id)
            self.sides[launched.side].hear(JobDone(result))
        else:
            launched = self._running.pop(outcome.job_id)
            mine = replace(outcome, job_id=launched.job_id, worker_id=0)
            self.sides[launched.side].hear(mine)


class Side:
    """The executor of one of the units; it has one worker, 0."""

    def __init__(self, split: Split, index: int, first_block: int, models: Set[str]) -> None:
        self.first_block = first_block
        self._split, self._index, self._models = split, index, models
        self._heard: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()

    @property
    def is_recovering(self) -> bool:
        return self._split.is_recovering

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """Of this unit's models."""
        return tuple(each for each in self._split.backends if each.model in self._models)

    def start(self) -> None:
        """The one executor has started."""

    def launch(self, job: Job) -> None:
        assert not job.copies, "copies name slots of the whole pool"
        self._split.launch(self._index, job)

    def wait(self, timeout_s: float | None) -> Sequence[Outcome]:
        until_s = None if timeout_s is None else monotonic() + timeout_s
        try:
            first = self._heard.get(timeout=_left(until_s))
        except queue.Empty:
            return []
        return [] if first is None else [first]

    def hear(self, outcome: Outcome | None) -> None:
        """From the split's thread; None only wakes."""
        self._heard.put(outcome)

    def restart(self) -> None:
        """Raises EngineFailure always: memory that others hold too is not loaded again here."""
        raise EngineFailure("one of several units over an executor cannot restart it")

    def wake(self) -> None:
        self.hear(None)

    def kill(self) -> None:
        """The whole is closed by its owner."""

    def close(self) -> None:
        """The whole is closed by its owner."""


def _left(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - monotonic())
