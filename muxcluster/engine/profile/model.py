"""Measures how long prefill jobs and decode steps of one model take on this machine."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from muxcluster.core.backends import as_loaded
from muxcluster.core.errors import LoadError
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import Executor, JobDone, Outcome
from muxcluster.engine.profile.grid import Grid, Point, fits, fits_mixed, num_beside
from muxcluster.engine.profile.jobs import ProfileJobs
from muxcluster.engine.profile.outcomes import check_outcome
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
    those from launching a job to its outcome, as the unit sees them. `on_point` is called after
    each point. executor: where jobs run, by default what `spec.partition` names; closed at the end.
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
        cells: list[Cell] = []
        mixed: list[MixedCell] = []
        for point in points:
            cells.extend(cells_at(executor, jobs, point, grid.repeats))
            if fits_mixed(spec, point):
                mixed.append(mixed_at(executor, jobs, point, grid.repeats))
            on_point(point)
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


def cells_at(
    executor: Executor, jobs: ProfileJobs, point: Point, repeats: int
) -> tuple[Cell, Cell]:
    """Measure a prefill, and a decode that reads its keys and values. Raises as `measure`."""
    prefill_s = samples_of(repeats, lambda: run_jobs(executor, jobs.prefill(point)))
    warm_up_decode(executor, jobs, point)
    decode_s = samples_of(repeats, lambda: run_jobs(executor, [jobs.decode(point)]))
    return _cell("prefill", point, prefill_s), _cell("decode", point, decode_s)


def mixed_at(executor: Executor, jobs: ProfileJobs, point: Point, repeats: int) -> MixedCell:
    """After `cells_at` of the same point: measure its decode step beside prompts of its length.

    Raises as `measure`.
    """
    prompts = num_beside(point.batch)
    seconds = samples_of(repeats, lambda: run_jobs(executor, [jobs.mixed(point, prompts)]))
    return MixedCell(1, point.share, point.batch, point.tokens, prompts, point.tokens, seconds)


def warm_up_decode(executor: Executor, jobs: ProfileJobs, point: Point) -> None:
    """After a prefill: let a model with a cache of its own form the batch that decodes.

    Raises as `check_outcome`.
    """
    # The first step may compute the sequences again (models with states), the second puts them
    # together.
    for _ in range(jobs.num_forming_steps):
        run_jobs(executor, [jobs.decode(point)])


def _cell(phase: Literal["prefill", "decode"], point: Point, seconds: tuple[float, ...]) -> Cell:
    return Cell(
        phase=phase,
        tp=1,
        share=point.share,
        batch=point.batch,
        tokens=point.tokens,
        seconds=seconds,
    )


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
        while not any(_is_end(outcome) for outcome in executor.wait(None)):
            continue
    return time.perf_counter() - started


def _is_end(outcome: Outcome) -> bool:
    """Return whether the one running job is done. Raises as `check_outcome`."""
    check_outcome(outcome)
    return isinstance(outcome, JobDone)
