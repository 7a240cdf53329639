"""A greedy placement: demanding models first, each on the mesh it loads least.

The seam for the full planner (mesh groups, replicas, an exact method): one function from a
`Problem` to a `Plan`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placement.estimate import UnitEstimate, estimate
from placement.memory import DoesNotFit, check_split
from placement.plan import Plan, PlannedModel, PlannedUnit
from placement.problem import Demand, Limits, Node, Problem


@dataclass(frozen=True, slots=True)
class _Mesh:
    """GPUs `first` to `first + tp` of a node, the models on them and what becomes of these."""

    node: Node
    first: int
    tp: int
    demands: tuple[Demand, ...]
    estimate: UnitEstimate

    def with_model(self, demand: Demand, limits: Limits) -> "_Mesh":
        """The mesh with one more model. Raises DoesNotFit."""
        check_split(demand, self.tp)
        demands = (*self.demands, demand)
        return replace(
            self, demands=demands, estimate=estimate(self.node.gpu, self.tp, demands, limits)
        )


def place(problem: Problem) -> Plan:
    """A plan with every model of the problem on one mesh.

    Models that need large meshes come first, then those with most load; a model opens a mesh of
    the fewest GPUs (a power of two) that hold it, or joins one, whichever is then least loaded.
    Raises memory.DoesNotFit.
    """
    start = time.perf_counter()
    alone = {each.name: _least_mesh(each, problem) for each in problem.demands}
    order = sorted(
        problem.demands,
        key=lambda each: (-alone[each.name].tp, -alone[each.name].estimate.load, each.name),
    )
    meshes: list[_Mesh] = []
    for demand in order:
        meshes = _place_one(demand, meshes, problem)
    units = _units(meshes)
    served = sum(model.throughput for unit in units for model in unit.models)
    return Plan(
        method="greedy",
        objective="throughput",
        score=served,
        throughput=served,
        bound=sum(each.rate for each in problem.demands),
        solve_seconds=time.perf_counter() - start,
        units=units,
    )


def _least_mesh(demand: Demand, problem: Problem) -> _Mesh:
    """The smallest mesh that holds the model alone; of equal ones the least loaded."""
    meshes: list[_Mesh] = []
    refusals: list[DoesNotFit] = []
    for node in problem.nodes:
        try:
            meshes.append(_open(demand, node, 0, problem.limits))
        except DoesNotFit as refusal:
            refusals.append(refusal)
    if not meshes:
        raise _closest(refusals)
    return min(meshes, key=lambda mesh: (mesh.tp, mesh.estimate.load))


def _place_one(demand: Demand, meshes: Sequence[_Mesh], problem: Problem) -> list[_Mesh]:
    """The meshes with `demand` added to one of them, or on a new one at the end."""
    options: list[tuple[int, _Mesh]] = []
    refusals: list[DoesNotFit] = []
    for index, mesh in enumerate(meshes):
        try:
            options.append((index, mesh.with_model(demand, problem.limits)))
        except DoesNotFit as refusal:
            refusals.append(refusal)
    for node in problem.nodes:
        num_used = sum(mesh.tp for mesh in meshes if mesh.node.name == node.name)
        try:
            options.append((len(meshes), _open(demand, node, num_used, problem.limits)))
        except DoesNotFit as refusal:
            refusals.append(refusal)
    if not options:
        raise _closest(refusals)
    index, best = min(options, key=lambda option: (option[1].estimate.load, option[1].tp))
    return [*meshes[:index], best, *meshes[index + 1 :]]


def _open(demand: Demand, node: Node, num_used: int, limits: Limits) -> _Mesh:
    """A new mesh for `demand` on the node's free GPUs. Raises DoesNotFit."""
    refusal = DoesNotFit(demand.name, f"no free GPU on node {node.name} for its mesh")
    tp = 1
    while tp <= node.num_gpus - num_used:
        try:
            found = _estimate(demand, node, tp, limits)
        except DoesNotFit as error:
            refusal = error
        else:
            return _Mesh(node, num_used, tp, (demand,), found)
        tp *= 2
    raise refusal


def _estimate(demand: Demand, node: Node, tp: int, limits: Limits) -> UnitEstimate:
    check_split(demand, tp)
    return estimate(node.gpu, tp, (demand,), limits)


def _closest(refusals: Sequence[DoesNotFit]) -> DoesNotFit:
    """The refusal that lacks least; one where memory is not the matter only if there is no other.

    `refusals` holds at least one: a problem has a node.
    """
    return min(refusals, key=lambda each: (each.missing_bytes is None, each.missing_bytes or 0))


def _units(meshes: Sequence[_Mesh]) -> tuple[PlannedUnit, ...]:
    ordered = sorted(meshes, key=lambda mesh: (mesh.node.name, mesh.first))
    units: list[PlannedUnit] = []
    for mesh in ordered:
        index = sum(unit.node == mesh.node.name for unit in units)
        units.append(
            PlannedUnit(
                id=f"{mesh.node.name}-{index}",
                node=mesh.node.name,
                gpus=tuple(range(mesh.first, mesh.first + mesh.tp)),
                tp=mesh.tp,
                kv_blocks=mesh.estimate.kv_blocks,
                models=_models(mesh.estimate),
            )
        )
    return tuple(units)


def _models(found: UnitEstimate) -> tuple[PlannedModel, ...]:
    return tuple(
        PlannedModel(
            name=each.demand.name,
            prefill_sm=each.prefill_share,
            decode_sm=each.decode_share,
            batch=each.batch,
            quota_blocks=each.quota_blocks,
            throughput=each.demand.rate * found.served,
        )
        for each in found.models
    )
