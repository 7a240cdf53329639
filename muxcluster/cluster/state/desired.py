"""What the controller keeps: the configuration and the plan in force, and every unit it started."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.state.reconcile import Mesh, Wanted
from muxcluster.config import Config, ConfiguredModel, served_models, unit_specs
from muxcluster.core.directory import KeyPair
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node


@dataclass(frozen=True, slots=True)
class Target:
    """A unit that is to run: `spec`, as planned in `planned`."""

    spec: UnitSpec
    planned: PlannedUnit
    num_gpus: float  # what Ray hands out

    @property
    def wanted(self) -> Wanted:
        """The same for the reconciler."""
        mesh = Mesh(self.planned.node, self.planned.gpus)
        return Wanted(key_of(self.spec), mesh, frozenset(m.name for m in self.spec.models))


@dataclass(frozen=True, slots=True)
class Record:
    """A unit that was started under `name` (its spec's unit_id) on the Ray node `node_id`."""

    name: str
    node_id: str
    target: Target


@dataclass(frozen=True, slots=True)
class Desired:
    """One generation of what is to run."""

    config: Config  # as it was given
    plan: Plan
    nodes: tuple[Node, ...]  # hardware that the plan is for
    targets: tuple[Target, ...]
    models: tuple[ServedModel, ...]  # all that are configured
    unplaced: tuple[str, ...] = ()  # those of them for which `nodes` have no room
    rates: tuple[tuple[str, float], ...] = ()  # requests/s by model that the plan is for
    needs_gpus: bool = False  # nodes without GPUs are no place for it, whatever else is lost


@dataclass(frozen=True, slots=True)
class State:
    """All that a controller needs to go on where another one ended."""

    desired: Desired | None = None
    edge: Edge | None = None  # the ingresses; None where somebody else runs them
    records: tuple[Record, ...] = ()
    serial: int = 0  # of the last unit that was started; no name is given twice
    client_key: KeyPair | None = None  # lets ingresses into units on tcp


def desired_of(
    config: Config,
    plan: Plan,
    nodes: Sequence[Node],
    unplaced: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
) -> Desired:
    """rates: what the plan is for, by model; None: what is configured.

    Raises ConfigError where plan and file disagree, or a model has no path.
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
        any(not node.gpu.is_cpu for node in nodes),
    )


def at_rates(config: Config, rates: Mapping[str, float]) -> Config:
    """The configuration with other expected rates (requests/s) for these models."""

    def changed(model: ConfiguredModel) -> ConfiguredModel:
        if model.name not in rates:
            return model
        section = model.section.model_copy(update={"rate": rates[model.name]})
        return replace(model, section=section)

    return replace(config, models=tuple(changed(model) for model in config.models))


def without(config: Config, names: Collection[str]) -> Config:
    """The configuration less these models."""
    return replace(config, models=tuple(m for m in config.models if m.name not in names))


def key_of(spec: UnitSpec) -> str:
    """Equal for units that need no restart to become each other: names and expectations aside."""
    models = tuple(_without_expectations(model) for model in spec.models)
    plain = asdict(replace(spec, unit_id="", models=models))
    return hashlib.sha256(json.dumps(plain, default=sorted).encode()).hexdigest()[:16]


def _without_expectations(model: ModelSpec) -> ModelSpec:
    return replace(model, rate_per_s=1.0, mean_prompt_tokens=1.0, mean_output_tokens=1.0, slo=None)
