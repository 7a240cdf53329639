"""`place`: from a problem to a plan, by the method asked for."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from muxcluster.placement.compat import place_compat, read_curves
from muxcluster.placement.estimator import Estimator
from muxcluster.placement.exact import solve_exact, upper_bound
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.search.assemble import planned_units
from muxcluster.placement.search.backlog import judged_anew, with_backlogs
from muxcluster.placement.search.baselines import memory_greedy, spatial
from muxcluster.placement.search.fair import (
    SEARCHES,
    Candidate,
    fairest,
    least_part,
    serves_all,
    with_rates,
)
from muxcluster.placement.search.gpus import kinds_of
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, singles, value
from muxcluster.placement.search.replan import continued, kept_units, matched, with_executions_kept
from muxcluster.placement.search.start import effort, search
from muxcluster.placement.search.subclusters import search_monotone

Method = Literal["greedy", "exact", "spatial", "memory-greedy", "compat"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class _Builders:
    """Builders of units; the same one where the problem has no batch work."""

    interactive: UnitBuilder  # of the problem without its batch work
    whole: UnitBuilder

    @classmethod
    def of(cls, problem: Problem) -> "_Builders":
        kinds = kinds_of(problem.nodes)
        whole = UnitBuilder(Estimator(problem), kinds)
        if not problem.backlog_tokens_per_s:
            return cls(whole, whole)
        return cls(UnitBuilder(Estimator(problem.without_backlogs()), kinds), whole)


@dataclass(frozen=True, slots=True)
class _Found:
    """A layout."""

    units: Sequence[PlacedUnit]
    bound: float | None = None  # no layout has a greater value
    # Of each unit, one by one, that whose GPUs it keeps
    before: Sequence[PlannedUnit | None] = ()


def place(
    problem: Problem,
    method: Method = "greedy",
    *,
    time_limit_s: float = 10.0,
    current: Plan | None = None,
    curves: Path | None = None,
) -> Plan:
    """A plan with every model of the problem in it; the same for any order of models and nodes.

    method: "greedy" is the search; "exact" proves it, or betters it, by set partition; "spatial"
    gives each model a mesh of its own, "memory-greedy" puts each where most memory is free, both
    for comparison; "compat" is the MuxServe planner's own objective and needs `curves`, the
    published profile. time_limit_s: for proving; the search has a budget of estimates, so that the
    same problem gets the same plan. Only where that takes longer than the limit (thousands of
    models), the best layout found by then is taken; 0 proves nothing and never ends the search.
    current: the plan in force, kept where a
    new one is not worth its moves (greedy and exact). Batch work is placed by greedy and exact, at
    no cost to the objective; the others are told what of it their plans do.
    Raises memory.DoesNotFit; compat.CompatError and OSError for "compat".
    """
    start = time.perf_counter()
    problem = problem.in_order()
    if method == "compat":
        if curves is None:
            raise ValueError("compat needs `curves`, the published profile")
        return place_compat(problem, read_curves(curves))
    builders = _Builders.of(problem)
    solver = _solver(method, current, time_limit_s, is_fair=problem.objective == "fair")
    found = solver(builders)
    placed = singles(found.units)
    if any(found.before):
        placed = with_executions_kept(builders.whole, placed, found.before)
    units = planned_units(problem, placed, found.before)
    return Plan(
        method=method,
        objective=problem.objective,
        score=_score(problem, placed),
        throughput=sum(model.throughput for unit in units for model in unit.models),
        bound=found.bound,
        solve_seconds=time.perf_counter() - start,
        units=units,
    )


def _solver(
    method: Method, current: Plan | None, time_limit_s: float, *, is_fair: bool
) -> Callable[[_Builders], _Found]:
    if method in ("spatial", "memory-greedy"):
        layout = spatial if method == "spatial" else memory_greedy
        return lambda builders: _Found(judged_anew(builders.whole, layout(builders.interactive)))
    if is_fair:
        return partial(_fair, current=current, time_limit_s=time_limit_s)
    prove = _exact if method == "exact" else _bounded
    return partial(prove, current=current, time_limit_s=time_limit_s)


def _fair(builders: _Builders, *, current: Plan | None, time_limit_s: float) -> _Found:
    """Return the layout that gives the greatest part of its rate to the model that gets least."""
    problem = builders.whole.estimator.problem

    def searched(part: float) -> Candidate | None:
        scaled = _Builders.of(problem.at_rates(part)) if part < 1 else builders
        end = time.perf_counter() + (time_limit_s / SEARCHES or math.inf)
        found = _with_current(scaled, current, end)
        units = with_rates(builders.whole, found.units, 1 / part)
        if units is None:
            return None
        return Candidate(units, serves_all(scaled.interactive, found.units), found.before)

    best = fairest(problem, searched)
    return _Found(best.units, before=best.before)


def _bounded(builders: _Builders, *, current: Plan | None, time_limit_s: float) -> _Found:
    """Return the search's layout and an upper bound of any."""
    end = time.perf_counter() + (time_limit_s or math.inf)
    found = _with_current(builders, current, end)
    builder = builders.interactive
    bound = upper_bound(builder, time_limit_s, reached=value(found.units))
    return replace(found, bound=_at_least(bound, builder, found.units))


def _with_current(builders: _Builders, current: Plan | None, end: float) -> _Found:
    """Return the search's layout, or what of the plan in force is not worth leaving for it."""
    units = with_backlogs(builders.whole, _searched(builders.interactive, end), end)
    return _continued(builders.whole, units, current, effort(builders.whole, units))


def _exact(builders: _Builders, *, current: Plan | None, time_limit_s: float) -> _Found:
    """Improve the search's layout as far as columns and time allow; keep `current` if no
    improvement is worth its moves."""
    builder = builders.interactive
    end = time.perf_counter() + (time_limit_s or math.inf)
    fresh = _searched(builder, end)
    start = _continued(builder, fresh, current, effort(builder, fresh))
    units, bound = solve_exact(builder, start.units, time_limit_s)
    found = _continued(builders.whole, with_backlogs(builders.whole, units), current, 0)
    return replace(found, bound=_at_least(bound, builder, found.units))


def _searched(builder: UnitBuilder, end: float) -> list[PlacedUnit]:
    nodes = builder.estimator.problem.nodes
    return search_monotone(builder, nodes, partial(search, end=end), end)


def _continued(
    builder: UnitBuilder, units: Sequence[PlacedUnit], current: Plan | None, most_estimates: int
) -> _Found:
    """Return `units`, or what of the plan in force is not worth leaving for them."""
    if current is None:
        return _Found(units)
    units = continued(builder, current, units, most_estimates=most_estimates)
    return _Found(units, before=_before(builder, current, singles(units)))


def _before(
    builder: UnitBuilder, current: Plan, units: Sequence[PlacedUnit]
) -> list[PlannedUnit | None]:
    return matched(builder, kept_units(builder, current), units)


def _score(problem: Problem, units: Sequence[PlacedUnit]) -> float:
    if problem.objective == "fewest-gpus":
        return float(sum(unit.tp for unit in units))
    if problem.objective == "fair":
        return least_part(problem, units)
    return value(units)


def _at_least(
    bound: float | None, builder: UnitBuilder, units: Sequence[PlacedUnit]
) -> float | None:
    """Return a bound of the objective, None if that is not a rate."""
    objective = builder.estimator.problem.objective
    if bound is None or objective == "fewest-gpus":
        return None
    return max(bound, value(units))
