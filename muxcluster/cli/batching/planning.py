"""From files to predictions: the unit that a batch job runs on, and its orders compared there."""

from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.cli.simulating.comparison import policy_of, whole_plan
from muxcluster.config import Config
from muxcluster.config.planning import nodes_of, problem, refusals
from muxcluster.core.errors import ConfigError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.offline.blend.resources import ResourceModel, resource_model
from muxcluster.offline.choice import (
    Choice,
    Nature,
    compare_orders,
    nature_of,
    sample_job,
)
from muxcluster.offline.orders import ORDERS
from muxcluster.sim.batch import SimPredictor
from muxcluster.sim.batch_load import BatchFile
from muxcluster.sim.planned import units_of
from muxcluster.sim.systems_units import plan_of
from muxcluster.sim.unit import SimUnit
from placement.names import nearest

AUTO = "auto"
"""The order that stands for all of them: the fastest by prediction is taken."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for. order: a name, or `AUTO`. num_sampled: requests, at most."""

    order: str
    num_sampled: int
    seed: int


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the job runs. num_units: that serve the model; the others are like this one."""

    unit: SimUnit
    spec: ModelSpec
    resources: ResourceModel
    num_units: int

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


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A job and its orders. num_known, num_cut: requests whose output length is known, and those
    that the context cuts short or refuses."""

    setting: Setting
    whole: Nature
    choice: Choice
    num_known: int
    num_cut: int

    @property
    def scale(self) -> float:
        """How many times the sample's work the job has."""
        return self.whole.optimum_s / self.choice.sample.optimum_s


def setting_of(
    config: Config,
    model: str | None,
    plan: Path | None,
    lane: str | None = None,
    *,
    option: str = "--model",
) -> Setting:
    """The unit that serves most of `model`; None: of the only one.

    plan: None plans greedily. lane: None takes the configured one. option: which
    names the model. Raises ConfigError, InfeasiblePlan.
    """
    name = _model_name(config, model, option)
    with refusals(config):
        asked = problem(config, nodes_of(config))
        made = plan_of("greedy", asked) if plan is None else whole_plan(plan, config)
    throughputs = [
        max((each.throughput for each in unit.models if each.name == name), default=-1.0)
        for unit in made.units
    ]
    chosen = throughputs.index(max(throughputs))
    policy = replace(policy_of(config), lane=lane or config.policy.scheduler)
    unit = units_of(made, asked, policy)[chosen]
    spec = next(each for each in unit.spec.models if each.name == name)
    gpu = next(node.gpu for node in asked.nodes if node.name == made.units[chosen].node)
    resources = resource_model(unit.models[name].shape, gpu, unit.tp, spec.shape.itemsize)
    return Setting(unit, spec, resources, sum(each >= 0 for each in throughputs))


def _model_name(config: Config, model: str | None, option: str) -> str:
    names = [each.name for each in config.models]
    if model is None and len(names) == 1:
        return names[0]
    if model is None:
        raise ConfigError(option, "", f"needed: one of {', '.join(names)}")
    if model not in names:
        raise ConfigError(option, "", f"no model {model!r} in {config.file}{nearest(model, names)}")
    return model


def compare(setting: Setting, path: Path, wish: Wish) -> Comparison:
    """The orders of the job in a file, side by side. Raises ConfigError."""
    read = setting.file(path).read(wish.seed)
    whole = read.job.with_tree()
    sample = sample_job(read.job, whole, wish.num_sampled)
    predictor = SimPredictor(setting.unit, setting.spec.name, setting.resources)
    names = tuple(ORDERS) if wish.order == AUTO else (wish.order,)
    choice = compare_orders(sample, predictor, names)
    return Comparison(setting, nature_of(whole), choice, read.num_known, read.num_cut)
