"""Cases of a command line, and their reports."""

from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from muxcluster.cli.simulating.demand import LoadOptions, demand_of
from muxcluster.cli.simulating.hybrid import BatchOptions, waves_of
from muxcluster.config.load import Config
from muxcluster.config.planfile import whole_plan
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import refusals
from muxcluster.core.errors import InfeasiblePlan, MuxClusterError
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.batch.with_interactive import JobBeside
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache, PartProgress, sweep
from muxcluster.sim.cases.systems import System
from muxcluster.sim.cases.systems_units import asked_by
from muxcluster.sim.report.report import CaseReport


@dataclass(frozen=True, slots=True)
class Grid:
    """Systems times rate scales, and how they are simulated."""

    systems: tuple[System, ...]
    scales: tuple[float, ...]
    options: LoadOptions
    slo_scale: float
    # Plan of the systems with placement "greedy"; None plans them at every scale
    plan: Path | None = None
    batch: BatchOptions | None = None  # additional batch load, None for none
    job: JobBeside | None = None  # an additional batch job


@dataclass(frozen=True, slots=True)
class Refused:
    """A system that finds no placement."""

    system: str
    rate_scale: float
    reason: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The cases of a grid, by scale, then in the order of the systems."""

    cases: tuple[Case, ...]
    refused: tuple[Refused, ...]


def prepare(config: Config, grid: Grid, cache: Cache) -> Prepared:
    """Plan every case. Raises ConfigError for a wrong file, InfeasiblePlan if no system finds a
    placement."""
    with refusals(config):
        base = problem(config, nodes_of(config))
    given = None if grid.plan is None else whole_plan(grid.plan, config)
    cases: list[Case] = []
    refused: list[Refused] = []
    for scale in grid.scales:
        load, asked = demand_of(grid.options, base, scale)
        waves = None if grid.batch is None else waves_of(grid.batch, grid.options, asked)
        if grid.job is not None:
            waves = waves or ()
        for system in grid.systems:
            try:
                plan = _plan(system, given, asked, cache)
            except DoesNotFit as error:
                refused.append(Refused(system.name, scale, str(error)))
                continue
            cases.append(
                Case(
                    system,
                    plan,
                    asked,
                    load,
                    rate_scale=scale,
                    duration_s=grid.options.duration_s,
                    seed=grid.options.seed,
                    slo_scale=grid.slo_scale,
                    waves=waves,
                    job=grid.job,
                )
            )
    if not cases:
        raise InfeasiblePlan(f"{config.file}: {refused[0].reason}")
    return Prepared(tuple(cases), tuple(refused))


def reports_of(
    prepared: Prepared, cache: Cache, num_processes: int, progress: PartProgress
) -> list[CaseReport]:
    """Return the report of each case. Raises ConfigError for a cache that cannot be written,
    MuxClusterError if a process is lost."""
    try:
        return sweep(
            prepared.cases,
            cache,
            num_processes=num_processes,
            progress=progress,
            parts=progress,
        )
    except BrokenProcessPool as error:
        raise MuxClusterError(f"a simulating process ended: {error}") from error


def _plan(system: System, given: Plan | None, asked: Problem, cache: Cache) -> Plan:
    if given is not None and system.method == "greedy":
        return given
    return cache.plan(system.method, asked_by(system, asked))
