"""The live view as a JSON value, from what units, requests and controller say. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from muxcluster.core.residency import WeightState
from muxcluster.core.served import ModelStats, ServedModel
from muxcluster.http.live.units import UP, TokenRates, UnitSeen
from muxcluster.http.metrics.recent import WINDOW_S, RecentFigures

# of the controller's description of a unit, what is told of it here
_DESCRIBED = ("node", "gpus", "device", "lane", "sm_shares", "phase", "reason", "draining")
# where a model's weights are best, first
_WEIGHTS = tuple(state.value for state in WeightState)
_SUMS = (
    "running",
    "waiting",
    "waiting_tokens",
    "quota_blocks",
    "used_blocks",
    "cached_blocks",
    "batch_blocks",
    "lent_requests",
    "preemptions",
    "rate_per_s",
    "prompt_tokens_per_s",
    "output_tokens_per_s",
)


def units_told(
    units: Sequence[UnitSeen], described: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return every unit with its models. described: the controller's, by id; may lack units.

    Units that only the controller knows are told, too: their state is its phase.
    """
    seen = {unit.unit_id for unit in units}
    others = [
        UnitSeen(unit_id, str(unit.get("phase", "loading")))
        for unit_id, unit in described.items()
        if unit_id not in seen
    ]
    return [_unit(unit, described.get(unit.unit_id, {})) for unit in (*units, *others)]


def models_told(
    served: Sequence[ServedModel],
    units: Sequence[Mapping[str, Any]],
    recent: Mapping[str, RecentFigures],
) -> list[dict[str, Any]]:
    """Return every served model over its units. units: of `units_told`."""
    return [_model(model, units, recent.get(model.name, RecentFigures())) for model in served]


def _unit(unit: UnitSeen, described: Mapping[str, Any]) -> dict[str, Any]:
    stats = unit.stats
    rates = unit.rates or {}
    if stats is None:
        models = [{"name": each["name"]} for each in described.get("models", ())]
    else:
        models = [_unit_model(each, rates.get(each.name, TokenRates())) for each in stats.models]
    return {
        "id": unit.unit_id,
        "state": unit.state,
        **{name: described.get(name) for name in _DESCRIBED},
        "report_age_s": None if unit.age_s is None else round(unit.age_s, 3),
        "num_blocks": None if stats is None else stats.num_blocks,
        "free_blocks": None if stats is None else stats.free_blocks,
        "sharing": None if stats is None or stats.sharing is None else asdict(stats.sharing),
        "sm": unit.shares,
        "models": models,
    }


def _unit_model(stats: ModelStats, rates: TokenRates) -> dict[str, Any]:
    return {
        "name": stats.name,
        "backend": stats.backend,
        "weights": stats.weights,
        "order": stats.order or None,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "waiting_tokens": stats.waiting_tokens,
        "quota_blocks": stats.quota_blocks,
        "used_blocks": stats.used_blocks,
        "cached_blocks": stats.cached_blocks,
        "batch_blocks": stats.batch_blocks,
        "lent_requests": stats.num_lent,
        "preemptions": stats.num_preemptions,
        "rate_per_s": round(stats.rate_per_s if stats.is_rate_measured else 0.0, 3),
        "prompt_tokens_per_s": round(rates.prompt_per_s, 1),
        "output_tokens_per_s": round(rates.output_per_s, 1),
        "resident_bytes": stats.resident_bytes,
        "expected_wait_s": round(stats.expected_wait_s, 3),
        "step_time_error": round(stats.step_time_error, 3),
    }


def _model(
    model: ServedModel, units: Sequence[Mapping[str, Any]], figures: RecentFigures
) -> dict[str, Any]:
    name = model.unit_model
    mine = [(unit, each) for unit in units for each in unit["models"] if each["name"] == name]
    # units count the requests of an adapter as its base's
    own = [] if model.base else mine
    orders = {each["order"] for _, each in mine if each.get("order")}
    return {
        "name": model.name,
        "state": _state((unit["state"], each.get("weights")) for unit, each in mine),
        "orders": sorted(orders),
        "units": [unit["id"] for unit, _ in mine],
        **{key: round(sum(each.get(key, 0) for _, each in own), 3) for key in _SUMS},
        "expected_wait_s": min((each.get("expected_wait_s", 0.0) for _, each in mine), default=0.0),
        "targets": None if model.slo is None else asdict(model.slo),
        "recent": {"window_s": WINDOW_S, **asdict(figures)},
    }


def _state(found: Iterable[tuple[str, str | None]]) -> str:
    """Return where a model's weights are at the best unit that is up; else what is wrong.

    found: of each of its units the state, and where the weights are there.
    """
    pairs = list(found)
    weights = [where for state, where in pairs if state == UP and where in _WEIGHTS]
    if weights:
        return min(weights, key=_WEIGHTS.index)
    return pairs[0][0] if pairs else "no unit"
