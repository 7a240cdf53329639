"""Planning for `place`: from the options to the plan, and to the plan before it, if any."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.cli.placing.reports import Judged
from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for, refusals
from muxcluster.config.what_if import changed
from muxcluster.placement.plan import Plan
from muxcluster.placement.planner import Method
from muxcluster.placement.review.difference import Difference, difference

REPLANNING: tuple[Method, ...] = (
    "greedy",
    "exact",
)  # methods that can continue from a current plan


@dataclass(frozen=True, slots=True)
class Solver:
    """Options of planning."""

    method: Method
    time_limit_s: float
    curves: Path | None = None  # MuxServe's published table, for compat

    def unproven(self) -> "Solver":
        """Return a solver of the same plans without their bound, if only the proof takes time."""
        return self if self.method == "exact" else replace(self, time_limit_s=0.0)

    def plan(self, config: Config, current: Plan | None) -> Plan:
        """Plan. Raises InfeasiblePlan, ConfigError."""
        return plan_for(
            config,
            method=self.method,
            time_limit_s=self.time_limit_s,
            current=current if self.method in REPLANNING else None,
            curves=self.curves,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, and the one before it."""

    after: Judged
    before: Plan | None = None  # the current plan, or the one without the `--what-if` changes

    def difference(self) -> Difference | None:
        if self.before is None:
            return None
        return difference(self.after.problem, self.before, self.after.plan)


def solve(config: Config, solver: Solver, current: Plan | None, changes: Sequence[str]) -> Outcome:
    """Plan for `config` after `changes`, from `current` if it is given.

    Changes without a plan in force are compared with the plan that would be made now, and start
    from it. Raises InfeasiblePlan, ConfigError.
    """
    wanted = config
    for change in changes:
        wanted = changed(wanted, change)
    before = solver.unproven().plan(config, None) if changes and current is None else current
    plan = solver.plan(wanted, before)
    with refusals(wanted):
        asked = problem(wanted, nodes_of(wanted))
    return Outcome(Judged(asked, plan), before)
