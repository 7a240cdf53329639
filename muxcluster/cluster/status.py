"""The cluster's state as one JSON value: what `muxcluster status` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from muxcluster.core.served import ModelStats, UnitState, UnitStats
from muxcluster.core.unitspec import ModelSpec, UnitSpec


@dataclass(frozen=True, slots=True)
class UnitView:
    """A unit as planned and, unless it does not answer, as it is now."""

    spec: UnitSpec
    stats: UnitStats | None

    @property
    def is_healthy(self) -> bool:
        """It answers and has not failed; one whose processes restart is healthy."""
        return self.stats is not None and self.stats.state is not UnitState.FAILED


def describe(
    nodes: Sequence[Mapping[str, Any]], units: Sequence[UnitView], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """{"healthy", "nodes", "units": [{..., "models": [...]}], "plan": {"method", "score"}}."""
    return {
        "healthy": all(view.is_healthy for view in units),
        "nodes": [dict(node) for node in nodes],
        "units": [_unit(view) for view in units],
        "plan": {key: plan.get(key) for key in ("method", "objective", "score", "throughput")},
    }


def _unit(view: UnitView) -> dict[str, Any]:
    stats = view.stats
    found = {model.name: model for model in stats.models} if stats else {}
    return {
        "id": view.spec.unit_id,
        "healthy": view.is_healthy,
        "state": stats.state.value if stats else None,
        "device": view.spec.device,
        "sm_shares": sorted({share for slot in view.spec.workers for share in slot.shares}),
        "sharing": asdict(stats.sharing) if stats and stats.sharing else None,
        "num_blocks": view.spec.num_blocks,
        "free_blocks": stats.free_blocks if stats else None,
        "models": [_model(spec, found.get(spec.name)) for spec in view.spec.models],
    }


def _model(spec: ModelSpec, stats: ModelStats | None) -> dict[str, Any]:
    now = stats or ModelStats(spec.name)
    return {
        "name": spec.name,
        "running": now.num_running,
        "waiting": now.num_waiting,
        "quota_blocks": now.quota_blocks,
        "used_blocks": now.used_blocks,
        "cached_blocks": now.cached_blocks,
        "rate_per_s": round(now.rate_per_s, 3),
        "prompt_tokens": now.prompt_tokens,
        "output_tokens": now.output_tokens,
        "preemptions": now.num_preemptions,
    }
