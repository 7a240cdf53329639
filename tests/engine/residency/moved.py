"""A residency executor under hand-made moves and jobs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from muxcluster.core.job import Job, JobResult
from muxcluster.core.residency import Move, MoveKind, Residency
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import (
    JobDone,
    JobFailed,
    ModelLost,
    Moved,
    MoveFailed,
    Outcome,
    OwnerLost,
    StillRunning,
)
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.residency.executor import ResidencyExecutor
from tests.engine.driver import Driver, unit_of


def in_turns(spec: UnitSpec, num_resident: int, residency: Residency = Residency.AUTO) -> UnitSpec:
    """The unit with room for so many of its models, all of one size."""
    models = tuple(replace(m, residency=residency, resident_bytes=1) for m in spec.models)
    return replace(spec, models=models, resident_bytes=num_resident)


class Moves:
    """Makes moves and jobs, and keeps what else happened meanwhile."""

    def __init__(self, spec: UnitSpec, executor: ResidencyExecutor) -> None:
        self.spec = spec
        self.executor = executor
        self.others: list[Outcome] = []
        self._ids = count()
        self._blocks = iter(np.random.default_rng(1).permutation(spec.num_blocks).tolist())

    def driver(self, name: str) -> Driver:
        """A driver for a model that has just become resident: nothing of its tables is known."""
        (model,) = (each for each in self.spec.models if each.name == name)
        return Driver(self, model, self._blocks)  # type: ignore[arg-type]

    def begin(self, name: str, kind: MoveKind) -> int:
        """Begin a move; its id."""
        move = Move(next(self._ids), name, kind)
        self.executor.move(move)
        return move.move_id

    def end(self, move_id: int) -> Moved | MoveFailed:
        """The end of a move."""
        return self.until(lambda outcome: getattr(outcome, "move_id", None) == move_id)

    def wake(self, name: str) -> Moved:
        moved = self.end(self.begin(name, MoveKind.WAKE))
        assert isinstance(moved, Moved), moved
        return moved

    def park(self, name: str) -> Moved:
        moved = self.end(self.begin(name, MoveKind.PARK))
        assert isinstance(moved, Moved), moved
        return moved

    def execute(self, job: Job) -> JobResult:
        """Run a job as a runner would."""
        self.executor.launch(job)
        done = self.until(lambda outcome: isinstance(outcome, JobDone | JobFailed | OwnerLost))
        assert isinstance(done, JobDone), done
        return done.result

    def record_next(self) -> bool:
        """As a runner's; workers do it themselves."""
        return False

    def until(self, is_it) -> Outcome:  # type: ignore[no-untyped-def]
        """Wait for an outcome, and keep the others."""
        while True:
            found = None
            for outcome in self.executor.wait(None):
                if isinstance(outcome, StillRunning):
                    continue
                if found is None and is_it(outcome):
                    found = outcome
                else:
                    self.others.append(outcome)
            if found is not None:
                return found

    def until_lost(self) -> Sequence[Outcome]:
        """What has happened up to the loss of a model or of all."""
        loss = self.until(lambda outcome: isinstance(outcome, ModelLost | OwnerLost))
        before, self.others = self.others, []
        return [*before, loss]


@contextmanager
def moving(
    directories: Sequence[Path],
    num_resident: int = 1,
    residency: Residency = Residency.ON_DEMAND,
    patience: Patience | None = None,
) -> Iterator[Moves]:
    """A started executor of the models in `directories`, with one worker."""
    unit = replace(unit_of(*directories), partition="threads")
    spec = in_turns(unit, num_resident, residency)
    executor = ResidencyExecutor(spec, patience)
    try:
        executor.start()
        yield Moves(spec, executor)
    finally:
        executor.close()
