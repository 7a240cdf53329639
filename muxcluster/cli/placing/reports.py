"""A plan with its problem and, if the estimator can judge it, its reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from muxcluster.placement.memory import block_bytes, columns_of, parts_of
from muxcluster.placement.plan import Plan, PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand, Problem
from muxcluster.placement.review.assess import UnitReport, assess
from muxcluster.placement.review.backlog import BatchUnit, batch_units
from muxcluster.placement.review.headroom import Headroom, headroom
from muxcluster.placement.review.idle import IdleGpus, idle_gpus


@dataclass(frozen=True)
class Judged:
    """A plan for `problem`. Frozen; derived values are computed once."""

    problem: Problem
    plan: Plan

    @cached_property
    def reports(self) -> Mapping[str, UnitReport]:
        """Reports by unit. A unit is missing if our estimator would not put its models together:
        the reference planner (compat) counts memory in its own way."""
        try:
            return {report.id: report for report in assess(self.problem, self.plan)}
        except ValueError:
            return {unit.id: report for unit in self.plan.units if (report := self._alone(unit))}

    @cached_property
    def demands(self) -> Mapping[str, Demand]:
        return {demand.name: demand for demand in self.problem.demands}

    @cached_property
    def served(self) -> Mapping[str, float]:
        """Requests/s by model, over its replicas."""
        served = dict.fromkeys(self.demands, 0.0)
        for unit in self.plan.units:
            for model in unit.models:
                served[model.name] += model.throughput
        return served

    @property
    def offered(self) -> float:
        return sum(demand.rate for demand in self.problem.demands)

    def gpu_name(self, unit: PlannedUnit) -> str:
        return next(node.gpu.name for node in self.problem.nodes if node.name == unit.node)

    def block_bytes(self, unit: PlannedUnit) -> int:
        demands = [self.demands[model.name] for model in unit.models]
        return block_bytes(demands, self.problem.limits)

    def tokens(self, unit: PlannedUnit, model: PlannedModel) -> int:
        """Return the tokens that the model's quota holds, in whole blocks of every layer."""
        demand = self.demands[model.name]
        parts = parts_of(demand, unit.tp)
        column = columns_of(demand, self.block_bytes(unit), parts)
        return column.num_fitting(model.quota_blocks // parts)

    @cached_property
    def headroom(self) -> Headroom | None:
        """None if our estimator does not judge all units, or did not choose them."""
        if self.plan.method == "compat":
            return None
        try:
            return headroom(self.problem, self.plan)
        except ValueError:
            return None

    @cached_property
    def batch(self) -> tuple[BatchUnit, ...]:
        """Units with batch work; none if our estimator does not judge all units."""
        if self.plan.method == "compat":
            return ()
        try:
            return batch_units(self.problem, self.plan)
        except ValueError:
            return ()

    @cached_property
    def headroom_beside_batch(self) -> Headroom | None:
        """As `headroom`, while batch work is done as planned; None if there is none."""
        if not self.batch:
            return None
        return headroom(self.problem, self.plan, beside_batch=True)

    @cached_property
    def idle(self) -> tuple[IdleGpus, ...]:
        """Unused GPUs by node; nodes without any are left out."""
        return idle_gpus(self.problem, self.plan, self.headroom)

    def _alone(self, unit: PlannedUnit) -> UnitReport | None:
        try:
            (report,) = assess(self.problem, self.plan.model_copy(update={"units": (unit,)}))
        except ValueError:
            return None
        return report
