"""The controller's stored state: configuration, plan, and every unit it started."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.state.reconcile import Mesh, WantedUnit
from muxcluster.config import Config, ConfiguredModel, served_models, unit_specs
from muxcluster.core.directory import KeyPair
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node


@dataclass(frozen=True, slots=True)
class Target:
    """A desired unit: `spec`, as planned in `planned`."""

    spec: UnitSpec
    planned: PlannedUnit
    num_gpus: float  # GPUs that Ray assigns

    @property
    def wanted(self) -> WantedUnit:
        """The same unit for the reconciler."""
        mesh = Mesh(self.planned.node, self.planned.gpus)
        return WantedUnit(key_of(self.spec), mesh, frozenset(m.name for m in self.spec.models))


@dataclass(frozen=True, slots=True)
class Record:
    """A unit that was started under `name` (its spec's unit_id) on the Ray node `node_id`."""

    name: str
    node_id: str
    target: Target


@dataclass(frozen=True, slots=True)
class Desired:
    """One generation of the desired state."""

    config: Config  # as given by the user
    plan: Plan
    nodes: tuple[Node, ...]  # hardware that the plan is for
    targets: tuple[Target, ...]
    models: tuple[ServedModel, ...]  # all that are configured
    unplaced: tuple[str, ...] = ()  # models that do not fit on `nodes`
    rates: tuple[tuple[str, float], ...] = ()  # requests/s by model that the plan is for
    needs_gpus: bool = (
        False  # True if it must not run on nodes without GPUs, even if others are lost
    )


@dataclass(frozen=True, slots=True)
class State:
    """Everything that a controller needs to continue another one's work."""

    desired: Desired | None = None
    edge: Edge | None = None  # the ingresses; None if somebody else runs them
    records: tuple[Record, ...] = ()
    serial: int = 0  # of the last started unit; no name is used twice
    client_key: KeyPair | None = None  # lets ingresses into units on tcp


def desired_of(
    config: Config,
    plan: Plan,
    nodes: Sequence[Node],
    unplaced: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
) -> Desired:
    """Build the desired state.

    rates: of the plan, by model; None: the configured ones. Raises ConfigError if plan and file
    disagree, or a model has no path.
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
    """Return the configuration with other expected rates (requests/s) for these models."""

    def changed(model: ConfiguredModel) -> ConfiguredModel:
        if model.name not in rates:
            return model
        section = model.section.model_copy(update={"rate": rates[model.name]})
        return replace(model, section=section)

    return replace(config, models=tuple(changed(model) for model in config.models))


def without(config: Config, names: Collection[str]) -> Config:
    """Return the configuration without these models."""
    return replace(config, models=tuple(m for m in config.models if m.name not in names))


def key_of(spec: UnitSpec) -> str:
    """Return a key without names and expectations; between equal keys no restart is needed."""
    models = tuple(_without_expectations(model) for model in spec.models)
    plain = asdict(replace(spec, unit_id="", models=models))
    return hashlib.sha256(json.dumps(plain, default=sorted).encode()).hexdigest()[:16]


def _without_expectations(model: ModelSpec) -> ModelSpec:
    return replace(model, rate_per_s=1.0, mean_prompt_tokens=1.0, mean_output_tokens=1.0, slo=None)
