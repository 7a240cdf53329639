"""Measures how long prefill jobs and decode steps of one model take on this machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from muxcluster.core.backends import as_loaded
from muxcluster.core.errors import LoadError
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor
from muxcluster.engine.profile.grid import Grid, Point, fits, fits_mixed, num_beside
from muxcluster.engine.profile.jobs import ProfileJobs
from muxcluster.engine.profile.outcomes import num_ended, seconds_behind
from muxcluster.engine.profile.turns import measure_turns
from muxcluster.engine.unit.executor_choice import make_executor
from muxcluster.placement.cost import Cell, MixedCell, Turn

# A warm-up that takes this long counts as the first repeat: what only a first run pays (memory
# touched, kernels chosen for a new size, some milliseconds) is lost in it.
LONG_S = 1.0


class Profiled(NamedTuple):
    """Measured step times of a unit."""

    cells: tuple[Cell, ...]
    spec: UnitSpec  # the unit with its model as loaded
    mixed: tuple[MixedCell, ...] = ()
    turns: tuple[Turn, ...] = ()


def measure(
    spec: UnitSpec,
    grid: Grid,
    on_point: Callable[[Point], None],
    executor: Executor | None = None,
) -> Profiled:
    """Measure a prefill and a decode cell for each point of `grid` that fits, in the grid's order,
    mixed jobs where they fit, and on a CPU the unit's own work between jobs (turns.py).

    spec: a unit of one model, whose first worker may run at every share of the grid. Seconds are
    those from launching a job to its outcome, as the unit sees them; of a decode step where
    `pipeline_depth` is 2, from the outcome of the step that it was sent behind. `on_point` is
    called each time that a point was run, `grid.repeats` + 1 times at most. executor: where jobs
    run, by default what `spec.partition` names; closed at the end.
    Raises LoadError naming the file at fault, also if no point fits the loaded model, EngineFailure
    if a job or process was lost.
    """
    executor = executor or make_executor(spec)
    try:
        executor.start()
        spec = as_loaded(spec, executor.backends)
        points = [point for point in grid.points() if fits(spec, point)]
        if not points:
            raise _nothing_fits(spec)
        jobs = ProfileJobs(spec)
        prompts = [num_beside(each.batch) if fits_mixed(spec, each) else 0 for each in points]
        runs = [PointRuns(point, beside) for point, beside in zip(points, prompts, strict=True)]
        run_in_turn(executor, jobs, runs, grid.repeats, on_point)
        cells = [cell for each in runs for cell in each.cells(grid.repeats)]
        mixed = [cell for each in runs for cell in each.mixed_cells(grid.repeats)]
        turns = measure_turns(spec, executor, grid) if spec.device == "cpu" else ()
        return Profiled(tuple(cells), spec, tuple(mixed), turns)
    finally:
        executor.close()


def _nothing_fits(spec: UnitSpec) -> LoadError:
    message = (
        "no batch and length asked for fits its padded batches: ask for shorter --lengths or "
        "raise policy.kv_gb"
    )
    return LoadError(Path(spec.models[0].path, "config.json"), message)


@dataclass(slots=True, eq=False)
class PointRuns:
    """The jobs of one point, run again and again; their first run is a warm-up."""

    point: Point
    prompts: int = 0  # beside its decode step in a mixed job; 0: no such job
    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    mixed_s: list[float] = field(default_factory=list)

    def run(self, executor: Executor, jobs: ProfileJobs) -> None:
        """Run a prefill, and what reads its keys and values. Raises as `measure`."""
        point = self.point
        self.prefill_s.append(run_jobs(executor, jobs.prefill(point)))
        warm_up_decode(executor, jobs, point)
        self.decode_s.append(run_decode(executor, jobs, point))
        if self.prompts:
            self.mixed_s.append(run_jobs(executor, [jobs.mixed(point, self.prompts)]))

    def has_run(self, repeats: int) -> bool:
        """Return whether there are `repeats` runs without the warm-up, or with a long one."""
        if not self.prefill_s:
            return False
        return len(self.prefill_s) >= repeats + (self.prefill_s[0] < LONG_S)

    def cells(self, repeats: int) -> tuple[Cell, Cell]:
        where = (1, self.point.share, self.point.batch, self.point.tokens)
        return (
            Cell("prefill", *where, tuple(self.prefill_s[-repeats:])),
            Cell("decode", *where, tuple(self.decode_s[-repeats:])),
        )

    def mixed_cells(self, repeats: int) -> tuple[MixedCell, ...]:
        if not self.prompts:
            return ()
        point, seconds = self.point, tuple(self.mixed_s[-repeats:])
        where = (1, point.share, point.batch, point.tokens)
        return (MixedCell(*where, self.prompts, point.tokens, seconds),)


def run_in_turn(
    executor: Executor,
    jobs: ProfileJobs,
    runs: Sequence[PointRuns],
    repeats: int,
    on_point: Callable[[Point], None],
) -> None:
    """Run every point, then every one again, as often as `repeats` needs.

    The same job over and over would be up to a tenth faster than jobs of changing sizes, as a unit
    has them: memory and kernels of the last size are reused. And what disturbs the machine for a
    while does not hit one point alone. Raises as `measure`.
    """
    for _ in range(repeats + 1):
        for each in runs:
            if not each.has_run(repeats):
                each.run(executor, jobs)
                on_point(each.point)


def warm_up_decode(executor: Executor, jobs: ProfileJobs, point: Point) -> None:
    """After a prefill: let a model with a cache of its own form the batch that decodes.

    Raises as `check_outcome`.
    """
    # The first step may compute the sequences again (models with states), the second puts them
    # together.
    for _ in range(jobs.num_forming_steps):
        run_jobs(executor, [jobs.decode(point)])


def run_decode(executor: Executor, jobs: ProfileJobs, point: Point) -> float:
    """Return the seconds of a decode step, as units of this specification run most of them.

    Raises as `check_outcome`.
    """
    step = jobs.decode(point)
    if jobs.sends_ahead:
        return seconds_behind(executor, step, jobs.ids)
    return run_jobs(executor, [step])


def samples_of(repeats: int, run: Callable[[], float]) -> tuple[float, ...]:
    """Return the seconds of `repeats` runs after a warm-up."""
    warm_up_s = run()
    seconds = [warm_up_s] if warm_up_s >= LONG_S else []
    while len(seconds) < repeats:
        seconds.append(run())
    return tuple(seconds)


def run_jobs(executor: Executor, jobs: Sequence[Job]) -> float:
    """Return the seconds that the jobs take, one after the other. Raises as `check_outcome`."""
    started = time.perf_counter()
    for job in jobs:
        executor.launch(job)
        while not num_ended(executor):
            continue
    return time.perf_counter() - started
