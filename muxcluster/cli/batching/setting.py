"""Where a batch job runs: the units that serve its model."""

from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.cli.simulating.comparison import policy_of, whole_plan
from muxcluster.config import Config
from muxcluster.config.planning import nodes_of, problem, refusals
from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.offline.blend.resources import ResourceModel, resource_model
from muxcluster.sim.batch_load import BatchFile
from muxcluster.sim.planned import units_of
from muxcluster.sim.systems_units import plan_of
from muxcluster.sim.unit import SimUnit
from placement.names import nearest
from placement.plan import Plan
from placement.problem import Problem


@dataclass(frozen=True, slots=True)
class Setting:
    """A unit that runs a job, and what of it the plans ask."""

    unit: SimUnit
    spec: ModelSpec
    resources: ResourceModel

    @property
    def size_bytes(self) -> int:
        """The whole pool, as nothing else runs."""
        return self.unit.spec.num_blocks * self.unit.spec.block_bytes

    def file(self, path: Path, digest: str = "") -> BatchFile:
        """A job for this unit."""
        spec = self.spec
        return BatchFile(
            path,
            spec.name,
            self.resources,
            self.size_bytes,
            spec.shape.block_tokens(self.unit.spec.block_bytes),
            spec.max_model_len,
            round(spec.mean_output_tokens),
            digest,
        )


def settings_of(
    config: Config,
    model: str | None,
    plan: Path | None,
    lane: str | None = None,
    *,
    option: str = "--model",
) -> tuple[Setting, ...]:
    """The units that serve `model` (None: the only one), that which serves most of it first.

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
    """The units of the plan `made` that serve the model, that which serves most of it first.

    asked: what the plan answers. lane: as `settings_of`'s.
    """
    policy = replace(policy_of(config), lane=lane or config.policy.scheduler)
    gpus = {node.name: node.gpu for node in asked.nodes}
    found = []
    for planned, unit in zip(made.units, units_of(made, asked, policy), strict=True):
        if name not in unit.models:
            continue
        spec = next(each for each in unit.spec.models if each.name == name)
        shape, gpu = unit.models[name].shape, gpus[planned.node]
        resources = resource_model(shape, gpu, unit.tp, spec.shape.itemsize)
        served = max(each.throughput for each in planned.models if each.name == name)
        found.append((served, Setting(unit, spec, resources)))
    found.sort(key=lambda each: -each[0])
    return tuple(setting for _, setting in found)


def _model_name(config: Config, model: str | None, option: str) -> str:
    names = [each.name for each in config.models]
    if model is None and len(names) == 1:
        return names[0]
    if model is None:
        raise ConfigError(option, "", f"needed: one of {', '.join(names)}")
    if model not in names:
        raise ConfigError(option, "", f"no model {model!r} in {config.file}{nearest(model, names)}")
    return model
