"""The cluster's state as a JSON value, as printed by `muxcluster status`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from muxcluster.cluster.state.desired import Desired, Record
from muxcluster.cluster.state.reconcile import Phase
from muxcluster.core.served import ModelStats, UnitState, UnitStats
from muxcluster.core.unitspec import ModelSpec


@dataclass(frozen=True, slots=True)
class UnitView:
    """A started unit with its current state."""

    record: Record
    phase: Phase
    stats: UnitStats | None = None  # its last report
    reason: str | None = None
    is_draining: bool = False

    @property
    def is_healthy(self) -> bool:
        """Whether it answers and has not failed; a unit whose processes restart is healthy."""
        has_failed = self.stats is not None and self.stats.state is UnitState.FAILED
        return self.phase is Phase.READY and not has_failed


def describe(
    nodes: Sequence[Mapping[str, Any]], units: Sequence[UnitView], desired: Desired | None
) -> dict[str, Any]:
    """Return {"healthy", "nodes", "units": [{..., "models": [...]}], "rates", "unplaced", "plan"}.

    A cluster is healthy if everything planned runs and no model is without a place.
    """
    plan = {} if desired is None else desired.plan.model_dump(mode="json")
    running = {view.record.target.wanted.mesh for view in units if view.is_healthy}
    targets = () if desired is None else desired.targets
    unplaced = [] if desired is None else list(desired.unplaced)
    missing = [each.planned.id for each in targets if each.wanted.mesh not in running]
    return {
        "healthy": not unplaced
        and not missing
        and all(view.is_healthy for view in units if not view.is_draining),
        "nodes": [dict(node) for node in nodes],
        "units": [_unit(view) for view in units],
        "missing_units": missing,
        "unplaced": unplaced,
        "rates": [] if desired is None else _rates(desired, units),
        "plan": {key: plan.get(key) for key in ("method", "objective", "score", "throughput")},
    }


def measured_rates(units: Sequence[UnitView]) -> dict[str, float]:
    """Requests/s by model, over its units."""
    rates: dict[str, float] = {}
    for view in units:
        for model in view.stats.models if view.stats else ():
            rates[model.name] = rates.get(model.name, 0.0) + model.rate_per_s
    return rates


def _rates(desired: Desired, units: Sequence[UnitView]) -> list[dict[str, Any]]:
    """Return each model's configured, planned and measured rate (None: not measured yet)."""
    served: dict[str, float] = {}
    for unit in desired.plan.units:
        for model in unit.models:
            served[model.name] = served.get(model.name, 0.0) + model.throughput
    measured, planned = measured_rates(units), dict(desired.rates)
    found = {
        model.name
        for view in units
        for model in (view.stats.models if view.stats else ())
        if model.is_rate_measured
    }
    return [
        {
            "model": model.name,
            "planned_per_s": planned.get(model.name, model.section.rate),
            "capacity_per_s": round(served.get(model.name, 0.0), 3),
            "measured_per_s": round(measured[model.name], 3) if model.name in found else None,
        }
        for model in desired.config.models
    ]


def _unit(view: UnitView) -> dict[str, Any]:
    stats, target = view.stats, view.record.target
    spec = target.spec
    found = {model.name: model for model in stats.models} if stats else {}
    return {
        "id": view.record.name,
        "node": target.planned.node,
        "gpus": list(target.planned.gpus),
        "healthy": view.is_healthy,
        "phase": view.phase.value,
        "reason": view.reason,
        "draining": view.is_draining,
        "state": stats.state.value if stats else None,
        "device": spec.device,
        "lane": spec.scheduler.lane,
        "sm_shares": sorted({share for worker in spec.workers for share in worker.shares}),
        "sharing": asdict(stats.sharing) if stats and stats.sharing else None,
        "num_blocks": stats.num_blocks if stats else spec.num_blocks,
        "free_blocks": stats.free_blocks if stats else None,
        "models": [_model(each, found.get(each.name)) for each in spec.models],
    }


def _model(spec: ModelSpec, stats: ModelStats | None) -> dict[str, Any]:
    now = stats or ModelStats(spec.name)
    return {
        "name": spec.name,
        "backend": now.backend if stats else None,
        "running": now.num_running,
        "waiting": now.num_waiting,
        "quota_blocks": now.quota_blocks,
        "used_blocks": now.used_blocks,
        "cached_blocks": now.cached_blocks,
        "rate_per_s": round(now.rate_per_s, 3) if now.is_rate_measured else None,
        "prompt_tokens": now.prompt_tokens,
        "output_tokens": now.output_tokens,
        "preemptions": now.num_preemptions,
        "residency": spec.residency.value,
        "weights": now.weights if stats else None,
        "order": now.order or None,
        "wakes": now.num_wakes,
        "parks": now.num_parks,
        "wakes_ahead": now.num_wakes_ahead,
        "wakes_ahead_used": now.num_wakes_ahead_used,
        "waking_s": round(now.waking_s, 3),
        "resident_bytes": now.resident_bytes,
        "parked_bytes": now.parked_bytes,
        "expected_wait_s": round(now.expected_wait_s, 3),
        "adapters": [{"name": each.name, "bytes": each.num_bytes} for each in spec.adapters],
    }
