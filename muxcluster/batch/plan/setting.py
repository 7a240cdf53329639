"""Finds the units that serve the model of a batch job."""

from dataclasses import replace
from pathlib import Path

from muxcluster.config.load import Config
from muxcluster.config.planfile import whole_plan
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import refusals
from muxcluster.core.errors import ConfigError
from muxcluster.placement.names import nearest
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.batch.setting import Setting, settings_among
from muxcluster.sim.cases.systems_units import plan_of
from muxcluster.sim.core.planned import units_of


def settings_of(
    config: Config,
    model: str | None,
    plan: Path | None,
    lane: str | None = None,
    *,
    option: str = "--model",
) -> tuple[Setting, ...]:
    """Return the units of `model` (None: the only one); the one that serves most of it first.

    plan: None plans greedily. lane: None takes the configured one. option: which
    names the model. Raises ConfigError, InfeasiblePlan.
    """
    name = _model_name(config, model, option)
    with refusals(config):
        asked = problem(config, nodes_of(config))
        made = plan_of("greedy", asked) if plan is None else whole_plan(plan, config)
    return settings_in(config, name, made, asked, lane)


def settings_in(
    config: Config, name: str, made: Plan, asked: Problem, lane: str | None = None
) -> tuple[Setting, ...]:
    """Return the units of the plan `made` for a model; the one that serves most of it first.

    asked: what the plan answers. lane: as `settings_of`'s.
    """
    if lane is not None:
        scheduler = replace(asked.policy.scheduler, lane=lane)
        asked = replace(asked, policy=replace(asked.policy, scheduler=scheduler))
    return settings_among(units_of(made, asked), made, asked, name)


def _model_name(config: Config, model: str | None, option: str) -> str:
    names = [each.name for each in config.models]
    if model is None and len(names) == 1:
        return names[0]
    if model is None:
        raise ConfigError(option, "", f"needed: one of {', '.join(names)}")
    if model not in names:
        raise ConfigError(option, "", f"no model {model!r} in {config.file}{nearest(model, names)}")
    return model
