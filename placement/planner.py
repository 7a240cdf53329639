"""`place`: from a problem to a plan, by the method asked for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from placement.estimator import Estimator
from placement.plan import Plan, PlannedUnit
from placement.problem import Problem
from placement.search.assemble import planned_units
from placement.search.baselines import memory_greedy, spatial
from placement.search.gpus import kinds_of
from placement.search.layout import Placed, Workshop
from placement.search.replan import continued, kept_units, matched
from placement.search.start import effort, search
from placement.search.subclusters import search_monotone

Method = Literal["greedy", "spatial", "memory-greedy"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True, slots=True)
class _Found:
    """A layout; bound: no layout has a greater value; before: units whose GPUs it keeps."""

    units: Sequence[Placed]
    bound: float | None = None
    before: Sequence[PlannedUnit | None] = ()


def place(
    problem: Problem,
    method: Method = "greedy",
    *,
    current: Plan | None = None,
) -> Plan:
    """A plan with every model of the problem in it; the same for any order of models and nodes.

    method: "greedy" is the search; "spatial" gives each model a mesh of its own, "memory-greedy"
    puts each where most memory is free, both for comparison. The search has a budget of estimates,
    not of time, so that the same problem gets the same plan. current: the plan in force, kept where
    a new one is not worth its moves.
    Raises memory.DoesNotFit.
    """
    start = time.perf_counter()
    problem = replace(
        problem,
        demands=tuple(sorted(problem.demands, key=lambda each: each.name)),
        nodes=tuple(sorted(problem.nodes, key=lambda each: each.name)),
    )
    workshop = Workshop(Estimator(problem), kinds_of(problem.nodes))
    found = _solver(method, current)(workshop)
    units = planned_units(problem, found.units, found.before)
    return Plan(
        method=method,
        objective=problem.objective,
        score=_score(problem, found.units),
        throughput=sum(model.throughput for unit in units for model in unit.models),
        bound=found.bound,
        solve_seconds=time.perf_counter() - start,
        units=units,
    )


def _solver(method: Method, current: Plan | None) -> Callable[[Workshop], _Found]:
    if method == "spatial":
        return lambda workshop: _Found(spatial(workshop))
    if method == "memory-greedy":
        return lambda workshop: _Found(memory_greedy(workshop))
    return lambda workshop: _searched(workshop, current)


def _searched(workshop: Workshop, current: Plan | None) -> _Found:
    nodes = workshop.estimator.problem.nodes
    units = search_monotone(workshop, nodes, search)
    if current is None:
        return _Found(units)
    units = continued(workshop, current, units, most_estimates=effort(workshop, units))
    return _Found(units, before=_before(workshop, current, units))


def _before(workshop: Workshop, current: Plan, units: Sequence[Placed]) -> list[PlannedUnit | None]:
    return matched(workshop, kept_units(workshop, current), units)


def _score(problem: Problem, units: Sequence[Placed]) -> float:
    if problem.objective == "fewest-gpus":
        return float(sum(unit.tp for unit in units))
    return sum(unit.estimate.value for unit in units)
