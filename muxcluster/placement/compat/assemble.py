"""From a division to the units of plan.json: assign GPUs to meshes, and blocks to models."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muxcluster.placement.compat.columns import Tenants
from muxcluster.placement.compat.mesh import MeshEstimate, cache_gb, estimate
from muxcluster.placement.compat.meshes import Division
from muxcluster.placement.compat.solo import Tenant
from muxcluster.placement.execution import Execution, executions, planned
from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import (
    DoesNotFit,
    block_bytes,
    kv_blocks,
    parts_of,
    sequence_blocks,
)
from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.quota import split_blocks


@dataclass(frozen=True, slots=True)
class _PlacedMesh:
    """GPUs `first` to `first + size` of a node."""

    node: Node
    first: int
    size: int
    members: tuple[int, ...]  # models, none if it is idle


def planned_units(
    problem: Problem, tenants: Tenants, division: Division
) -> tuple[PlannedUnit, ...]:
    """The meshes that have models, by node and GPU.

    kv_blocks is muxcluster.placement.memory's figure, as the engine will have it; where a model's
    `max_model_len` or tables do not fit that, it is the reference's own cache in blocks.
    """
    placed = [mesh for mesh in _placed_meshes(problem.nodes, division) if mesh.members]
    placed.sort(key=lambda mesh: (mesh.node.name, mesh.first))
    return tuple(
        _unit(
            problem,
            mesh,
            [tenants[index][mesh.size] for index in mesh.members],
        )
        for mesh in placed
    )


def _placed_meshes(nodes: Sequence[Node], division: Division) -> Iterator[_PlacedMesh]:
    """Place all meshes, idle ones too, largest first, so that each lies on a multiple of its size.
    A node's remainder is divisible by the size of every mesh larger than what is left."""
    left = {node.name: node.num_gpus for node in nodes}
    meshes = [*division.columns, *((size, ()) for size in division.idle)]
    for size, members in sorted(meshes, key=lambda mesh: (-mesh[0], mesh[1])):
        node = next(each for each in nodes if left[each.name] >= size)
        yield _PlacedMesh(node, node.num_gpus - left[node.name], size, members)
        left[node.name] -= size


def _unit(problem: Problem, mesh: _PlacedMesh, tenants: Sequence[Tenant]) -> PlannedUnit:
    demands = [problem.demands[index] for index in mesh.members]
    execution = executions(mesh.node.gpu, mesh.size, len(demands), problem.policy)[0]
    num_blocks = _num_blocks(problem, mesh, demands, tenants, execution)
    return PlannedUnit(
        id=f"{mesh.node.name}-{mesh.first}",
        node=mesh.node.name,
        gpus=tuple(range(mesh.first, mesh.first + mesh.size)),
        tp=mesh.size,
        kv_blocks=num_blocks,
        models=_models(
            tenants, estimate(tenants), _quotas(problem, mesh.size, demands, num_blocks)
        ),
        execution=planned(execution),
    )


def _num_blocks(
    problem: Problem,
    mesh: _PlacedMesh,
    demands: Sequence[Demand],
    tenants: Sequence[Tenant],
    execution: Execution,
) -> int:
    try:
        return kv_blocks(mesh.node.gpu, mesh.size, demands, problem.limits, execution)
    except DoesNotFit:
        return int(cache_gb(tenants) * GIB) // block_bytes(demands, problem.limits)


def _quotas(
    problem: Problem, size: int, demands: Sequence[Demand], num_blocks: int
) -> tuple[int, ...]:
    """size: of the mesh; the reference does not ask whether a model can be divided so."""
    per_block = block_bytes(demands, problem.limits)
    floors = [
        sequence_blocks(each, each.max_model_len, per_block, parts_of(each, size))
        for each in demands
    ]
    weights = [each.rate * each.kv_bytes_per_token for each in demands]
    return split_blocks(num_blocks, floors, weights)


def _models(
    tenants: Sequence[Tenant], found: MeshEstimate, quotas: Sequence[int]
) -> tuple[PlannedModel, ...]:
    """Prefill has all SMs in the reference."""
    rows = zip(tenants, found.batches, found.throughputs, quotas, strict=True)
    return tuple(
        PlannedModel(
            name=tenant.name,
            prefill_sm=1.0,
            decode_sm=tenant.decode_sm / 100,
            batch=float(batch),
            quota_blocks=quota,
            throughput=min(tenant.rate, rate),
        )
        for tenant, batch, rate, quota in rows
    )
