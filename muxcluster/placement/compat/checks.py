"""A problem in the terms of the reference planner; refused if that cannot solve it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.compat.curves import Curves
from muxcluster.placement.compat.errors import CompatError
from muxcluster.placement.compat.facts import FACTS, GPU_NAME, ITEMSIZE, WEIGHTS_GB_PER_GPU
from muxcluster.placement.compat.meshes import Meshes, power_blocks
from muxcluster.placement.compat.solo import Model, Tenant, candidates, fill_share
from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES


@dataclass(frozen=True, slots=True)
class Case:
    """A problem in the terms of the reference planner."""

    models: tuple[Model, ...]  # in the order of `problem.demands`
    tenants: tuple[Mapping[int, Tenant], ...]  # of each model, by the tps that fit on the nodes
    meshes: Meshes  # at most one a model, if the nodes can be split into so few


def case_of(problem: Problem, curves: Curves) -> Case:
    """Convert a problem. Raises CompatError if a model, its dtype or rate, a node or the profile is
    unknown to the reference; DoesNotFit if a model needs a larger mesh than any node has."""
    models = tuple(_model(demand, curves) for demand in problem.demands)
    if not models:
        raise CompatError("there is no model to place: name at least one")
    blocks = [size for node in problem.nodes for size in _blocks(node)]
    if not blocks:
        raise CompatError("there is no GPU to place models on: name a node with at least one")
    fill = fill_share(models, sum(blocks))
    tenants = tuple(_tenants(model, curves, fill, max(blocks)) for model in models)
    most = len(models) if len(blocks) <= len(models) else None
    return Case(models, tenants, Meshes(tuple(blocks), most))


def _model(demand: Demand, curves: Curves) -> Model:
    known = ", ".join(FACTS)
    kind = next((each for each in FACTS if SHAPES[each] == demand.shape), None)
    if kind is None:
        raise CompatError(
            f"model {demand.name}: compat knows {known} and no other shape; use another method"
        )
    if demand.itemsize != ITEMSIZE:
        raise CompatError(f"model {demand.name}: compat knows 16-bit weights; use another method")
    if not demand.rate > 0:
        raise CompatError(f"model {demand.name}: compat weighs models by rate; give one above 0")
    if kind not in curves.by_model:
        raise CompatError(f"model {demand.name}: the profile has no {kind}; measure or remove it")
    return Model(demand.name, kind, demand.rate)


def _blocks(node: Node) -> Sequence[int]:
    if node.gpu.name != GPU_NAME:
        raise CompatError(
            f"node {node.name}: compat knows {GPU_NAME}, not {node.gpu.name}; use another method"
        )
    return power_blocks(node.num_gpus)


def _tenants(model: Model, curves: Curves, fill: float, largest: int) -> dict[int, Tenant]:
    found = [each.tenant for each in candidates(model, curves, fill)]
    options = {each.tp: each for each in found if each.tp <= largest}
    if not options:
        least = min((each.tp for each in found), default=model.facts.least_tp)
        missing = (model.facts.weights_gb - WEIGHTS_GB_PER_GPU * largest) * GIB
        raise DoesNotFit(
            model.name,
            f"{model.kind} needs a mesh of {least} GPUs, the largest on any node has {largest}",
            int(missing) if missing > 0 else None,
        )
    return options
