"""The plan in force, and the one that would be made after changes, as JSON values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import at_backlogs, at_rates, plan_what_fits, without
from muxcluster.config.load import Config
from muxcluster.config.planner_input import problem
from muxcluster.config.schema import NodeSection
from muxcluster.config.what_if import changed
from muxcluster.core.inputs.carried import Carried
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node
from muxcluster.placement.review.difference import Difference, difference

WHERE = "changes"  # what they are called in errors
_KIND = "A100-80GB"  # of listed nodes while changes are made: the nodes know what they have


@dataclass(frozen=True, slots=True)
class PlanRefusal(Carried):
    """Why no plan was made. code: "rate_limit_exceeded", "model_loading" or "invalid_value"."""

    message: str
    code: str = "invalid_value"


def plan_told(desired: Desired) -> dict[str, Any]:
    """Return the plan in force: its `plan.json`, the nodes, and the models with their rates."""
    return _told(desired.plan, desired.nodes, dict(desired.rates), desired.unplaced)


def what_if(desired: Desired, changes: Sequence[str]) -> dict[str, Any]:
    """Return the plan that would be made from the one in force after `changes`, as `plan_told`, and
    what would move. Nothing is changed.

    changes: as for `muxcluster place --what-if`, at the rates and backlogs that the plan in force
    is for, on the nodes that it is for. Raises ConfigError for a wrong change.
    """
    config = _with_nodes(desired.config, desired.nodes)
    wanted = at_backlogs(at_rates(config, dict(desired.rates)), dict(desired.backlogs))
    for change in changes:
        wanted = changed(wanted, change, WHERE)
    nodes = _nodes_of(wanted, desired.nodes)
    after, unplaced = plan_what_fits(wanted, nodes, desired.plan)
    found = difference(problem(without(wanted, unplaced), nodes), desired.plan, after)
    rates = {model.name: model.section.rate for model in wanted.models}
    return {
        **_told(after, nodes, rates, unplaced),
        "changes": list(changes),
        "difference": _difference(desired.plan, after, found),
    }


def _with_nodes(config: Config, nodes: Sequence[Node]) -> Config:
    """Return the configuration with these nodes listed, so that their GPUs can be changed."""
    listed = [
        NodeSection(name=node.name, gpus=node.num_gpus, gpu="cpu" if node.gpu.is_cpu else _KIND)
        for node in nodes
    ]
    return replace(config, cluster=config.cluster.model_copy(update={"nodes": listed}))


def _nodes_of(config: Config, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes as the configuration lists them: those there are, with as many GPUs."""
    there = {node.name: node for node in nodes}
    listed = config.cluster.nodes or []
    return tuple(replace(there[each.name], num_gpus=each.gpus) for each in listed)


def _told(
    plan: Plan, nodes: Sequence[Node], rates: Mapping[str, float], unplaced: Sequence[str]
) -> dict[str, Any]:
    return {
        "plan": plan.model_dump(mode="json"),
        "nodes": [
            {"name": node.name, "gpus": node.num_gpus, "gpu": node.gpu.name} for node in nodes
        ],
        "models": [
            {"name": name, "rate": rate, "placed": name not in unplaced}
            for name, rate in rates.items()
        ],
    }


def _difference(before: Plan, after: Plan, found: Difference) -> dict[str, Any]:
    return {
        "throughput": [before.throughput, after.throughput],
        "load_bytes": found.load_bytes,
        "moves": [
            {
                "model": move.model,
                "from": [_mesh(unit) for unit in move.before],
                "to": _mesh(move.to),
                "load_bytes": move.load_bytes,
                "stays_too": move.is_replica,
            }
            for move in found.moves
        ],
        "dropped": [{"model": name, "from": _mesh(unit)} for name, unit in found.dropped],
        "removed": list(found.removed),
        "kept": list(found.kept),
        "losers": [
            {"model": each.model, "before": each.before, "after": each.after}
            for each in found.losers
        ],
    }


def _mesh(unit: PlannedUnit) -> dict[str, Any]:
    return {"node": unit.node, "gpus": list(unit.gpus)}
