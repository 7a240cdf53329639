"""From a division to the units of plan.json: meshes get GPUs, models their blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muxcluster.placement.compat.columns import Tenants
from muxcluster.placement.compat.mesh import MeshEstimate, cache_gb, estimate
from muxcluster.placement.compat.meshes import Division
from muxcluster.placement.compat.solo import Tenant
from muxcluster.placement.hardware import GIB
from muxcluster.placement.memory import DoesNotFit, block_bytes, kv_blocks, sequence_blocks
from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.quota import split_blocks


@dataclass(frozen=True, slots=True)
class _Seat:
    """GPUs `first` to `first + size` of a node."""

    node: Node
    first: int
    size: int
    members: tuple[int, ...]  # models, none where it is idle


def planned_units(
    problem: Problem, tenants: Tenants, division: Division
) -> tuple[PlannedUnit, ...]:
    """The meshes that have models, by node and GPU.

    kv_blocks is muxcluster.placement.memory's figure, as the engine will have it; where a model's
    `max_model_len` or tables do not fit that, it is the reference's own cache in blocks.
    """
    seats = [seat for seat in _seats(problem.nodes, division) if seat.members]
    seats.sort(key=lambda seat: (seat.node.name, seat.first))
    return tuple(
        _unit(problem, seat, [tenants[index][seat.size] for index in seat.members])
        for seat in seats
    )


def _seats(nodes: Sequence[Node], division: Division) -> Iterator[_Seat]:
    """Largest first, idle meshes too: they fill the nodes, and each lies on a multiple of its
    size. A node's remainder is divisible by the size of every mesh larger than what is left."""
    left = {node.name: node.num_gpus for node in nodes}
    meshes = [*division.columns, *((size, ()) for size in division.idle)]
    for size, members in sorted(meshes, key=lambda mesh: (-mesh[0], mesh[1])):
        node = next(each for each in nodes if left[each.name] >= size)
        yield _Seat(node, node.num_gpus - left[node.name], size, members)
        left[node.name] -= size


def _unit(problem: Problem, seat: _Seat, tenants: Sequence[Tenant]) -> PlannedUnit:
    demands = [problem.demands[index] for index in seat.members]
    num_blocks = _num_blocks(problem, seat, demands, tenants)
    return PlannedUnit(
        id=f"{seat.node.name}-{seat.first}",
        node=seat.node.name,
        gpus=tuple(range(seat.first, seat.first + seat.size)),
        tp=seat.size,
        kv_blocks=num_blocks,
        models=_models(tenants, estimate(tenants), _quotas(problem, demands, num_blocks)),
    )


def _num_blocks(
    problem: Problem, seat: _Seat, demands: Sequence[Demand], tenants: Sequence[Tenant]
) -> int:
    try:
        return kv_blocks(seat.node.gpu, seat.size, demands, problem.limits)
    except DoesNotFit:
        return int(cache_gb(tenants) * GIB) // block_bytes(demands, problem.limits)


def _quotas(problem: Problem, demands: Sequence[Demand], num_blocks: int) -> tuple[int, ...]:
    per_block = block_bytes(demands, problem.limits)
    floors = [sequence_blocks(each, each.max_model_len, per_block) for each in demands]
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
