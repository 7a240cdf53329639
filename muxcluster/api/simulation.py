"""Simulating from Python: the engine's scheduler on a virtual clock, no GPU, no torch, no Ray."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from muxcluster.config.load import Config
from muxcluster.config.planfile import check_whole
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import refusals
from muxcluster.core.errors import InfeasiblePlan
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.systems import System, system_named
from muxcluster.sim.cases.systems_units import asked_by, plan_of
from muxcluster.sim.demand.load_options import LoadOptions, demand_of
from muxcluster.sim.report.report import CaseReport

__all__ = ["CaseReport", "simulate"]

_LONGEST_S = 7 * 86_400.0


def simulate(  # noqa: PLR0913 - each is an option of one simulation
    config: Config,
    *,
    systems: Sequence[str] = ("muxserve", "temporal"),
    plan: Plan | None = None,
    trace: Path | str | None = None,
    rate_scale: float = 1.0,
    duration_s: float = 1200.0,
    seed: int = 0,
) -> tuple[CaseReport, ...]:
    """Compare systems on the models and GPUs of a configuration; return a report of each.

    systems: names of `muxcluster simulate --systems`: "muxserve" (ours), "temporal" (one job at a
    time), "spatial" (a mesh per model, where there are GPUs enough) and others, with switches as
    in "muxserve:sharing=off". plan: of the systems that are placed greedily; None plans for the
    load. trace: requests of a file (ours, Azure's or Mooncake's) instead of Poisson arrivals at the
    configured rates with log-normal lengths around the configured means. rate_scale: a factor on
    all rates. duration_s: virtual seconds in which requests come. The same arguments give the same
    reports, but for `wall_s`.

    Runs in this process and takes seconds to minutes. Raises InfeasiblePlan naming a system that
    finds no placement, ConfigError for a wrong trace or plan, ValueError for other arguments.

    >>> from muxcluster import load_config, simulate
    >>> config = load_config("examples/small.yaml")
    >>> for report in simulate(config, duration_s=20):
    ...     print(report.system, report.total.num_requests, f"{report.total.finished_share:.2f}")
    muxserve 145 0.99
    temporal 145 0.99
    """
    if isinstance(systems, str) or not systems:
        raise ValueError("systems: expected a list of names")
    if not 0 < duration_s <= _LONGEST_S:
        raise ValueError(f"duration_s {duration_s:g}: more than 0, at most a week")
    if not 0 < rate_scale <= 1e6:
        raise ValueError(f"rate_scale {rate_scale:g}: expected a number above 0")
    chosen = [system_named(name) for name in systems]
    if plan is not None:
        check_whole("plan", plan, config)
    options = LoadOptions(duration_s, seed, trace=None if trace is None else Path(trace))
    cases = list(_cases(config, chosen, plan, options, rate_scale))
    return tuple(map(run_case, cases))


def _cases(
    config: Config,
    systems: Sequence[System],
    plan: Plan | None,
    options: LoadOptions,
    rate_scale: float,
) -> Iterator[Case]:
    """Plan the case of each system. Raises InfeasiblePlan, ConfigError."""
    with refusals(config):
        base = problem(config, nodes_of(config))
    load, asked = demand_of(options, base, rate_scale)
    for system in systems:
        yield Case(
            system,
            _placed(config, system, plan, asked),
            asked,
            load,
            rate_scale=rate_scale,
            duration_s=options.duration_s,
            seed=options.seed,
        )


def _placed(config: Config, system: System, given: Plan | None, asked: Problem) -> Plan:
    if given is not None and system.method == "greedy":
        return given
    try:
        return plan_of(system.method, asked_by(system, asked))
    except DoesNotFit as error:
        raise InfeasiblePlan(f"{config.file}: system {system.name}: {error}") from error
