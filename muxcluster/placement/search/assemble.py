"""From a layout to the units of plan.json: assign GPUs to meshes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from muxcluster.core.residency import Residency
from muxcluster.placement.execution import move_refusal, planned
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.problem import Node, Problem
from muxcluster.placement.search.layout import PlacedUnit


@dataclass(frozen=True, slots=True)
class _PlacedMesh:
    """GPUs `first` to `first + tp` of a node."""

    node: Node
    first: int
    unit: PlacedUnit


def planned_units(
    problem: Problem, units: Sequence[PlacedUnit], before: Sequence[PlannedUnit | None] = ()
) -> tuple[PlannedUnit, ...]:
    """Assign GPUs to the units: large meshes first, each on the first node with room, so that
    meshes of a power of two are aligned. `units` must fit (Kind.holds).

    before: for each unit, the one whose GPUs it keeps, if any; if the other units find no room
    beside those, all units get new GPUs.
    """
    meshes = _with_gpus(problem, units, before) if any(before) else None
    meshes = meshes or _with_gpus(problem, units, ())
    assert meshes is not None, "meshes that fit by count find no GPUs"
    return tuple(
        PlannedUnit(
            id=f"{mesh.node.name}-{number}",
            node=mesh.node.name,
            gpus=tuple(range(mesh.first, mesh.first + mesh.unit.tp)),
            tp=mesh.unit.tp,
            kv_blocks=mesh.unit.estimate.kv_blocks,
            models=_models(problem, mesh.unit),
            execution=planned(mesh.unit.estimate.execution),
            resident_bytes=_resident_bytes(mesh.unit),
            unproven=_unproven(mesh.unit),
        )
        for number, mesh in _numbered(meshes)
    )


def _with_gpus(
    problem: Problem, units: Sequence[PlacedUnit], before: Sequence[PlannedUnit | None]
) -> list[_PlacedMesh] | None:
    """Assign GPUs to each unit; None if there are none for one."""
    nodes = {node.name: node for node in problem.nodes}
    free = {node.name: [True] * node.num_gpus for node in problem.nodes}
    meshes, others = [], []
    for unit, old in zip_longest(units, before):
        if old is None or not _can_keep(old, free[old.node]):
            others.append(unit)
        else:
            meshes.append(_PlacedMesh(nodes[old.node], old.gpus[0], unit))
            _take(free[old.node], meshes[-1])
    starts: dict[tuple[Gpu, int], int] = {}
    for unit in sorted(others, key=lambda unit: (-unit.tp, unit.offers)):
        mesh = _first_free(problem, free, unit, starts)
        if mesh is None:
            return None
        meshes.append(mesh)
        _take(free[mesh.node.name], mesh)
    return meshes


def _can_keep(old: PlannedUnit, free: Sequence[bool]) -> bool:
    """Return whether its GPUs are adjacent and used by no other unit."""
    first, end = old.gpus[0], old.gpus[0] + old.tp
    return old.gpus == tuple(range(first, end)) and all(free[first:end])


def _take(free: list[bool], mesh: _PlacedMesh) -> None:
    free[mesh.first : mesh.first + mesh.unit.tp] = [False] * mesh.unit.tp


def _first_free(
    problem: Problem,
    free: Mapping[str, Sequence[bool]],
    unit: PlacedUnit,
    starts: dict[tuple[Gpu, int], int],
) -> _PlacedMesh | None:
    """starts: by kind and size of mesh, the first node that may have room for one; updated."""
    for position in range(starts.get((unit.gpu, unit.tp), 0), len(problem.nodes)):
        node = problem.nodes[position]
        if node.gpu != unit.gpu:
            continue
        for first in range(0, node.num_gpus - unit.tp + 1, unit.tp):
            if all(free[node.name][first : first + unit.tp]):
                starts[unit.gpu, unit.tp] = position
                return _PlacedMesh(node, first, unit)
    return None


def _numbered(meshes: Iterable[_PlacedMesh]) -> Iterable[tuple[int, _PlacedMesh]]:
    """Number the units of each node by their GPUs."""
    number, name = 0, None
    for mesh in sorted(meshes, key=lambda mesh: (mesh.node.name, mesh.first)):
        number = number + 1 if mesh.node.name == name else 0
        name = mesh.node.name
        yield number, mesh


def _resident_bytes(unit: PlacedUnit) -> int:
    weight_memory = unit.estimate.weight_memory
    return 0 if weight_memory is None else weight_memory.resident_bytes


def _unproven(unit: PlacedUnit) -> str:
    found = unit.estimate
    return "" if found.weight_memory is None else move_refusal(unit.gpu, found.execution)


def _models(problem: Problem, unit: PlacedUnit) -> tuple[PlannedModel, ...]:
    found = unit.estimate
    asks = [problem.demands[index].backlog is not None for index, _ in unit.offers]
    done = [0.0] * len(asks) if found.backlog is None else found.backlog.done
    return tuple(
        PlannedModel(
            name=problem.demands[index].name,
            residency=_residency(problem, unit, index),
            wakes_per_h=3600 * wakes,
            wake_s=wake_s,
            waking_p50_s=late.waking_s.median,
            waking_p95_s=late.waking_s.high,
            prefill_sm=found.loads.prefill_share,
            decode_sm=share,
            batch=max(1.0, late.batch),
            quota_blocks=quota,
            throughput=rate * served,
            backlog_tokens_per_s=tokens if is_asked else None,
        )
        for (index, rate), share, quota, served, late, is_asked, tokens, wakes, wake_s in zip(
            unit.offers,
            found.loads.decode_shares,
            found.quotas,
            found.served,
            found.latencies(),
            asks,
            done,
            found.wakes_per_s(),
            found.wake_s(),
            strict=True,
        )
    )


def _residency(problem: Problem, unit: PlacedUnit, index: int) -> Residency:
    """Return what may become of a model's weights: where all are resident at once, nothing."""
    weight_memory = unit.estimate.weight_memory
    return Residency.ALWAYS if weight_memory is None else problem.demands[index].residency
