"""Input of `muxcluster profile`, checked before anything starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TypeVar

import typer

from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.planner_input import ITEMSIZE, nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.config.schema import ClusterSection
from muxcluster.config.units import unit_specs
from muxcluster.core.errors import ConfigError
from muxcluster.core.job import WorkerSpec
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.profile.grid import Grid, fits
from muxcluster.engine.unit.partition_choice import settle_partition
from muxcluster.placement.hardware import gpu_named, local_cores
from muxcluster.placement.names import nearest
from muxcluster.placement.problem import Node

_MOST = 2**20
# Shares measured by default on a GPU: each one is a process or a context.
GPU_SHARES = (0.3, 0.5, 0.7, 1.0)
_DEVICES = (
    "muxcluster.engine.profile.device"  # imports torch, which a profile of CPUs does not need
)

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure."""

    model: ConfiguredModel
    # A unit of this model as in `serve`, but with one worker for all shares
    spec: UnitSpec


def numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Parse "1,2,4" to distinct numbers, ascending; none for None. Raises BadParameter."""
    if text is None:
        return ()
    try:
        found = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(0 < number <= _MOST for number in found):
        raise typer.BadParameter(f"{option}: {text!r} is no list of positive numbers such as 1,2,4")
    return tuple(found)


def node_of(config: Config) -> Node:
    """Return the file's first node, which must be like this machine: a CPU with no more cores than
    it has, or GPUs of its kind.

    Raises ConfigError if it is not, or another node is of another kind.
    """
    node, *others = nodes_of(config)
    for index, other in enumerate(others, 1):
        if other.gpu.name != node.gpu.name:
            key = f"cluster.nodes[{index}].gpu"
            message = f"{other.gpu.name}, after {node.gpu.name}: profile measures one kind of node"
            raise ConfigError(config.file, key, message)
    if not node.gpu.is_cpu:
        _check_gpu(config, node)
        return node
    cores, here = node.gpu.num_sms, local_cores()
    if cores > here:
        message = f"{cores}, but this machine has {here}: run profile on node {node.name}"
        raise ConfigError(config.file, "cluster.nodes[0].cores", message)
    return node


def _check_gpu(config: Config, node: Node) -> None:
    names: Sequence[str] = import_module(_DEVICES).names()
    try:
        kinds = {gpu_named(name).name for name in names}
    except ValueError:
        kinds = set(names)
    if kinds != {node.gpu.name}:
        found = ", ".join(sorted(kinds)) or "no GPU"
        message = f"{node.gpu.name}, but this machine has {found}: run profile on node {node.name}"
        raise ConfigError(config.file, "cluster.nodes[0].gpu", message)


def shares_of(asked: Sequence[float], node: Node) -> tuple[float, ...]:
    """Return the shares to measure, by default the node's own; some of them on a GPU. Raises
    BadParameter for an impossible one.

    On a CPU a share is a number of threads: 0.7 of two cores would be measured as 0.5.
    """
    if not node.gpu.is_cpu:
        if wrong := [share for share in asked if share > 1]:
            raise typer.BadParameter(f"--shares: {wrong[0]:g} is more than the whole GPU")
        return tuple(asked) or GPU_SHARES
    cores = node.gpu.num_sms
    for share in asked:
        is_whole = share <= 1 and (share * cores).is_integer()
        if share not in node.gpu.shares and not is_whole:
            message = f"{share:g} of {cores} cores is no number of threads from 1 to {cores}"
            raise typer.BadParameter(f"--shares: {message}")
    return tuple(asked) or node.gpu.shares


def chosen(config: Config, names: str | None) -> list[ConfiguredModel]:
    """Return the models of that list, in the file's order. Raises ConfigError for unknown names."""
    known = [model.name for model in config.models]
    wanted = known if names is None else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(config.file, "models", f"no model {name!r}{nearest(name, known)}")
    return [model for model in config.models if model.name in wanted]


def subject_of(config: Config, model: ConfiguredModel, node: Node, grid: Grid) -> Subject:
    """Return a model to measure.

    Raises ConfigError for a model without a path, or one that no point of the grid fits, and
    InfeasiblePlan for one that does not fit the node's memory.
    """
    key = f"models[{config.models.index(model)}]"
    if model.path is None:
        message = (
            f"missing: {model.name} has a shape only, and profile runs it; with `load_format: "
            "dummy` a directory with its config.json is enough"
        )
        raise ConfigError(config.file, f"{key}.path", message)
    spec = _alone(config, model, node, grid.shares)
    if not any(fits(spec, point) for point in grid.points()):
        message = (
            f"{model.name} can run no batch and length asked for: its longest context is "
            f"{model.max_model_len}, max_seqs {model.section.max_seqs}"
        )
        raise ConfigError(config.file, key, message)
    return Subject(model, spec)


def can_divide(spec: UnitSpec) -> bool:
    """Return False if jobs run on the whole GPU, whatever their share."""
    return spec.device == "cpu" or spec.partition != "none"


def _alone(
    config: Config, model: ConfiguredModel, node: Node, shares: tuple[float, ...]
) -> UnitSpec:
    """Plan a unit of that model only, without the file's profiles (the one to be made may be among
    them) and with objective throughput, since the file's may be unreachable."""
    asked = config.policy.partition
    policy = config.policy.model_copy(update={"objective": "throughput"})
    cluster = ClusterSection(nodes=config.cluster.listed()[:1])
    config = replace(config, models=(model,), cluster=cluster, policy=policy)
    (spec,) = unit_specs(config, plan_for(config, [node]), [node])
    spec = replace(spec, workers=(WorkerSpec(0, shares),))
    if node.gpu.is_cpu or asked == "none":
        return spec
    # a lone model would get the whole GPU; here it is measured as one of several
    return settle_partition(replace(spec, partition=asked))


def check_itemsizes(config: Config, subjects: Sequence[Subject]) -> int:
    """Return the bytes of an element of all subjects' dtypes. Raises ConfigError if they differ."""
    first, *others = sorted({ITEMSIZE[subject.spec.models[0].dtype] for subject in subjects})
    if others:
        message = "their dtypes differ in size: profile them apart, with --models"
        raise ConfigError(config.file, "models", message)
    return first
