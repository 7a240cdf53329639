"""Plans that a bench lays out itself: who is where is given, and nothing is predicted."""

from collections.abc import Sequence

from muxcluster.placement.plan import Plan, PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand


def given_models(demands: Sequence[Demand], sm_share: float = 1.0) -> tuple[PlannedModel, ...]:
    """Models of a unit, each expected to serve its rate. sm_share: of prefills and of decodes."""
    return tuple(
        PlannedModel(
            name=demand.name,
            prefill_sm=sm_share,
            decode_sm=sm_share,
            batch=1.0,
            quota_blocks=0,
            throughput=demand.rate,
        )
        for demand in demands
    )


def given_plan(units: Sequence[PlannedUnit]) -> Plan:
    """The plan of these units, which says that all rates are served."""
    rate = sum(model.throughput for unit in units for model in unit.models)
    return Plan(
        method="given",
        objective="throughput",
        score=rate,
        throughput=rate,
        bound=None,
        solve_seconds=0.0,
        units=tuple(units),
    )
