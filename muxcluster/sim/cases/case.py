"""One case of a comparison: a system with its plan under a load."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.batch.with_interactive import JobBeside
from muxcluster.sim.cases.systems import System
from muxcluster.sim.cases.systems_units import units_for
from muxcluster.sim.core.simulate import JobSink, SimResult, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.loads import Load
from muxcluster.sim.demand.waves import Waves
from muxcluster.sim.report.classes import classes_report
from muxcluster.sim.report.judge import fairness_report, group_report, worst_model
from muxcluster.sim.report.report import CaseReport, GroupReport, WakesReport
from muxcluster.sim.report.slo import base_latencies
from muxcluster.sim.report.use import NUM_BINS, use_report
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Records
from muxcluster.workload.metrics.window import Window

_DRAIN = 2.0  # simulations stop at so many durations; requests open then are misses
_PART_STEP = 0.01
_MOST_BY_ARRIVALS = 0.95
PartSink = Callable[[float], None]
# SLO scales that are always reported.
SCALES = (1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that determines the outcome."""

    system: System
    plan: Plan
    problem: Problem
    load: Load
    rate_scale: float = 1.0  # of the load, only for the report
    duration_s: float = 1200.0  # of arrivals, and of the window for throughput
    seed: int = 0
    slo_scale: float = 8.0  # the one that worst model and plots go by
    # Batch load in a closed loop, of each unit that has the model. If not None (even if empty), all
    # requests run to their ends, because latencies of the finished ones alone would favour a system
    # that lets the others wait, and the report separates the classes of service.
    waves: tuple[Waves, ...] | None = None
    job: JobBeside | None = None  # a batch job present from the start; needs waves


def run_case(
    case: Case, on_job: JobSink | None = None, on_part: PartSink | None = None
) -> CaseReport:
    """Simulate a case.

    on_job: gets each job as it ends. on_part: gets, now and then, the part (0 to 1) simulated so
    far. Raises ConfigError for a malformed trace, KeyError where plan, problem and load name
    different models.
    """
    start = time.perf_counter()
    units = _units(case)
    arrivals = case.load.arrivals(case.seed, case.duration_s)
    result = simulate(
        units,
        arrivals if on_part is None else _watched(arrivals, case.duration_s, on_part),
        until_s=_DRAIN * case.duration_s if case.waves is None else inf,
        on_job=on_job,
        usage_bin_s=case.duration_s / NUM_BINS,
    )
    return _report(case, units, result, time.perf_counter() - start)


def _watched(
    arrivals: Iterable[Arrival], duration_s: float, on_part: PartSink
) -> Iterator[Arrival]:
    """Yield `arrivals` and report progress by their times.

    The last arrival is not the end, because open requests take a while as well.
    """
    told = 0.0
    for arrival in arrivals:
        part = _MOST_BY_ARRIVALS * arrival.time_s / duration_s
        if part >= told + _PART_STEP:
            told = part
            on_part(min(part, 1.0))
        yield arrival


def _units(case: Case) -> list[SimUnit]:
    waves = case.waves or ()
    units = [
        replace(unit, waves=tuple(each for each in waves if each.model in unit.models))
        for unit in units_for(case.system, case.plan, case.problem)
    ]
    if case.job is None:
        return units
    return case.job.given_to(units, case.plan, case.problem, case.seed)


def _report(case: Case, units: Sequence[SimUnit], result: SimResult, wall_s: float) -> CaseReport:
    window = Window(0.0, case.duration_s)
    bases = base_latencies(case.problem)
    demands = {demand.name: demand for demand in case.problem.demands}
    scales = sorted({*SCALES, case.slo_scale})

    def judged(records: Records) -> GroupReport:
        return group_report(records, window, bases, demands, scales)

    models = {name: judged(result.records.of_model(name)) for name in result.records.models}
    served = {name: group.requests_per_s for name, group in models.items()}
    offered = {name: group.offered_per_s for name, group in models.items()}
    return CaseReport(
        system=case.system.name,
        rate_scale=case.rate_scale,
        seed=case.seed,
        duration_s=case.duration_s,
        slo_scale=case.slo_scale,
        units=_unit_lines(case.plan),
        total=judged(result.records),
        models=models,
        fairness=fairness_report(served, offered),
        worst_model=worst_model(models, case.slo_scale),
        use=use_report(units, result.usage, case.duration_s, offered),
        num_jobs=result.num_jobs,
        wall_s=wall_s,
        classes=(
            None
            if case.waves is None
            else classes_report(result.records, window, demands, result.stats)
        ),
        wakes=_wakes_report(units, result),
    )


def _wakes_report(units: Sequence[SimUnit], result: SimResult) -> WakesReport | None:
    if not any(unit.spec.resident_bytes for unit in units):
        return None
    models = [model for unit in result.stats for model in unit.models]
    return WakesReport(
        num_wakes=sum(each.num_wakes for each in models),
        waking_s=sum(each.waking_s for each in models),
        num_ahead=sum(each.num_wakes_ahead for each in models),
        num_ahead_used=sum(each.num_wakes_ahead_used for each in models),
    )


def _unit_lines(plan: Plan) -> tuple[str, ...]:
    return tuple(
        f"{unit.id} (tp {unit.tp}): {', '.join(model.name for model in unit.models)}"
        for unit in plan.units
    )
