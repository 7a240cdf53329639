"""The controller's stored state: configuration, plan, and every unit it started."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from muxcluster import __version__
from muxcluster.cluster.state.edge import Edge
from muxcluster.cluster.state.reconcile import Mesh, WantedUnit
from muxcluster.config.load import Config
from muxcluster.core.directory import KeyPair
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Node


@dataclass(frozen=True, slots=True)
class Target(Carried):
    """A desired unit: `spec`, as planned in `planned`."""

    spec: UnitSpec
    planned: PlannedUnit
    num_gpus: float  # GPUs that Ray assigns
    # Of muxcluster, that its processes should have. Units of another one are replaced.
    version: str = __version__

    @property
    def wanted(self) -> WantedUnit:
        """The same unit for the reconciler."""
        mesh = Mesh(self.planned.node, self.planned.gpus)
        key = f"{key_of(self.spec)}-{self.version}"
        return WantedUnit(key, mesh, frozenset(m.name for m in self.spec.models))


@dataclass(frozen=True, slots=True)
class Record(Carried):
    """A unit that was started under `name` (its spec's unit_id) on the Ray node `node_id`."""

    name: str
    node_id: str
    target: Target


@dataclass(frozen=True, slots=True)
class Desired(Carried):
    """One generation of the desired state."""

    config: Config  # as given by the user
    plan: Plan
    nodes: tuple[Node, ...]  # hardware that the plan is for
    targets: tuple[Target, ...]
    models: tuple[ServedModel, ...]  # all that are configured
    unplaced: tuple[str, ...] = ()  # models that do not fit on `nodes`
    rates: tuple[tuple[str, float], ...] = ()  # requests/s by model that the plan is for
    # tokens/s of batch work by model that the plan is for, of models with any
    backlogs: tuple[tuple[str, float], ...] = ()
    needs_gpus: bool = (
        False  # True if it must not run on nodes without GPUs, even if others are lost
    )


@dataclass(frozen=True, slots=True)
class State(Carried):
    """Everything that a controller needs to continue another one's work."""

    desired: Desired | None = None
    edge: Edge | None = None  # the ingresses; None if somebody else runs them
    edge_deployed: Edge | None = None  # the last ones that ran on all nodes
    records: tuple[Record, ...] = ()
    serial: int = 0  # of the last started unit; no name is used twice
    client_key: KeyPair | None = None  # lets ingresses into units on tcp


def key_of(spec: UnitSpec) -> str:
    """Return a key without names and expectations; between equal keys no restart is needed."""
    models = tuple(_without_expectations(model) for model in spec.models)
    plain = asdict(replace(spec, unit_id="", models=models))
    return hashlib.sha256(json.dumps(plain, default=sorted).encode()).hexdigest()[:16]


def _without_expectations(model: ModelSpec) -> ModelSpec:
    return replace(model, rate_per_s=1.0, mean_prompt_tokens=1.0, mean_output_tokens=1.0, slo=None)
