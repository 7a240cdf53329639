"""What the cluster shall run: the units of a plan, and a plan for the nodes that are left.

If not all models fit, the ones worth most do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from muxcluster import __version__
from muxcluster.cluster.state.desired import Desired, Target
from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.planning import plan_for
from muxcluster.config.schema import DAY_S, BacklogSection
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.errors import InfeasiblePlan
from muxcluster.placement.hardware import WHOLE
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node


def desired_of(
    config: Config,
    plan: Plan,
    nodes: Sequence[Node],
    unplaced: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
    backlogs: Mapping[str, float] | None = None,
) -> Desired:
    """Build the desired state.

    rates, backlogs: of the plan, by model; None: the configured ones. Raises ConfigError if plan
    and file disagree, or a model has no path.
    """
    planned = config if rates is None else at_rates(config, rates)
    gpus = {node.name: 0.0 if node.gpu.is_cpu else 1.0 for node in nodes}
    targets = tuple(
        Target(spec, unit, gpus[unit.node] * unit.tp)
        for spec, unit in zip(
            unit_specs(without(planned, unplaced), plan, nodes), plan.units, strict=True
        )
    )
    return Desired(
        config,
        plan,
        tuple(nodes),
        targets,
        served_models(config),
        tuple(sorted(unplaced)),
        tuple((model.name, model.section.rate) for model in planned.models),
        tuple((backlogs_of(config) if backlogs is None else backlogs).items()),
        any(not node.gpu.is_cpu for node in nodes),
    )


def renewed(desired: Desired) -> Desired:
    """Return the same plan for processes of this version of muxcluster; `desired` if it is that."""
    if all(target.version == __version__ for target in desired.targets):
        return desired
    found = desired_of(
        desired.config,
        desired.plan,
        desired.nodes,
        desired.unplaced,
        dict(desired.rates),
        dict(desired.backlogs),
    )
    return replace(found, needs_gpus=desired.needs_gpus)


def at_rates(config: Config, rates: Mapping[str, float]) -> Config:
    """Return the configuration with other expected rates (requests/s) for these models."""

    def changed(model: ConfiguredModel) -> ConfiguredModel:
        if model.name not in rates:
            return model
        section = model.section.model_copy(update={"rate": rates[model.name]})
        return replace(model, section=section)

    return replace(config, models=tuple(changed(model) for model in config.models))


def backlogs_of(config: Config) -> dict[str, float]:
    """Return the configured batch work in tokens/s, by model."""
    batches = ((model.name, model.section.batch) for model in config.models)
    return {name: batch.tokens_per_s for name, batch in batches if batch is not None}


def at_backlogs(config: Config, backlogs: Mapping[str, float]) -> Config:
    """Return the configuration with other batch work (tokens/s) of these models."""

    def changed(model: ConfiguredModel) -> ConfiguredModel:
        if model.name not in backlogs:
            return model
        lengths = model.section.batch or BacklogSection(tokens_per_day=1.0)
        batch = lengths.model_copy(
            update={
                "tokens_per_day": backlogs[model.name] * DAY_S,
                "queue_tokens": None,
                "due_s": DAY_S,
            }
        )
        return replace(model, section=model.section.model_copy(update={"batch": batch}))

    return replace(config, models=tuple(changed(model) for model in config.models))


def without(config: Config, names: Collection[str]) -> Config:
    """Return the configuration without these models."""
    return replace(config, models=tuple(m for m in config.models if m.name not in names))


def plan_what_fits(
    config: Config, nodes: Sequence[Node], current: Plan | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """Return (plan, names of the models that did not fit).

    If not all models fit, they are taken by weight x rate, the greatest first, each that still fits
    beside those before it. Raises ConfigError as `plan_for` does.
    """
    if not nodes:
        return nothing_placed(config), tuple(sorted(model.name for model in config.models))
    plan = _plan(config, nodes, current)
    if plan is not None:
        return plan, ()
    dropped = {model.name for model in config.models}
    best = nothing_placed(config)
    for model in sorted(config.models, key=_worth, reverse=True):
        plan = _plan(without(config, dropped - {model.name}), nodes, current)
        if plan is not None:
            best = plan
            dropped.remove(model.name)
    return best, tuple(sorted(dropped))


def as_found(
    nodes: Sequence[Node], before: Sequence[Node], cannot_share: Collection[str]
) -> tuple[Node, ...]:
    """Return `nodes` with what their units found out: on some, jobs cannot share the SMs.

    before: nodes of the plan in force; what was found there stays. cannot_share: names of nodes
    where a unit was to share SMs, and found neither MPS nor green contexts.
    """
    known = {node.name for node in before if node.gpu.shares == WHOLE}
    return tuple(
        replace(node, gpu=replace(node.gpu, shares=WHOLE))
        if node.name in known or node.name in cannot_share
        else node
        for node in nodes
    )


def nothing_placed(config: Config) -> Plan:
    """Return the plan of a cluster without nodes."""
    return Plan(
        method="none",
        objective=config.policy.objective,
        score=0.0,
        throughput=0.0,
        bound=None,
        solve_seconds=0.0,
        units=(),
    )


def _plan(config: Config, nodes: Sequence[Node], current: Plan | None) -> Plan | None:
    try:
        return plan_for(config, tuple(nodes), current=current)
    except InfeasiblePlan:
        return None


def _worth(model: ConfiguredModel) -> float:
    return model.section.weight * model.section.rate
