"""Check of a plan against the cluster, independent of the planner that made it."""

from collections.abc import Iterator

from muxcluster.placement.execution import execution_of
from muxcluster.placement.memory import (
    DoesNotFit,
    activation_bytes,
    block_bytes,
    check_split,
    kv_blocks,
    recording_bytes,
    resident_bytes,
    usable_bytes,
)
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem


def violations(plan: Plan, problem: Problem) -> list[str]:
    """Return the errors of `plan` as an answer to `problem`, one line each; empty if none."""
    return [*_coverage(plan, problem), *_gpus(plan, problem), *_fits(plan, problem)]


def _coverage(plan: Plan, problem: Problem) -> Iterator[str]:
    asked = {demand.name: demand for demand in problem.demands}
    placed = [model for unit in plan.units for model in unit.models]
    for name in asked.keys() - {model.name for model in placed}:
        yield f"model {name} is in no unit"
    for name in {model.name for model in placed} - asked.keys():
        yield f"model {name} was not asked for"
    for name, demand in asked.items():
        served = sum(model.throughput for model in placed if model.name == name)
        if served > demand.rate * (1 + 1e-9):
            yield f"model {name} is served more than it is asked for"
    if abs(plan.throughput - sum(model.throughput for model in placed)) > 1e-6:
        yield "the plan's throughput is not the sum of its models'"
    if len({unit.id for unit in plan.units}) < len(plan.units):
        yield "two units have one id"


def _gpus(plan: Plan, problem: Problem) -> Iterator[str]:
    nodes = {node.name: node for node in problem.nodes}
    taken: set[tuple[str, int]] = set()
    for unit in plan.units:
        node = nodes.get(unit.node)
        if node is None:
            yield f"unit {unit.id} is on an unknown node {unit.node}"
            continue
        if len(unit.gpus) != unit.tp:
            yield f"unit {unit.id} has {len(unit.gpus)} GPUs for tp {unit.tp}"
        for gpu in unit.gpus:
            if gpu >= node.num_gpus:
                yield f"unit {unit.id} uses GPU {gpu} of node {node.name}, which has fewer"
            if (node.name, gpu) in taken:
                yield f"GPU {gpu} of node {node.name} is in two units"
            taken.add((node.name, gpu))


def _fits(plan: Plan, problem: Problem) -> Iterator[str]:
    nodes = {node.name: node for node in problem.nodes}
    asked = {demand.name: demand for demand in problem.demands}
    for unit in plan.units:
        demands = [asked[model.name] for model in unit.models if model.name in asked]
        if unit.node in nodes and demands:
            yield from _unit_fits(unit, nodes[unit.node], demands, problem)


def _unit_fits(
    unit: PlannedUnit, node: Node, demands: list[Demand], problem: Problem
) -> Iterator[str]:
    try:
        for demand in demands:
            check_split(demand, unit.tp)
        execution = execution_of(node.gpu, unit, problem.policy)
        if unit.resident_bytes:
            yield from _weights_fit(unit, node, demands, problem)
            return
        room = kv_blocks(node.gpu, unit.tp, demands, problem.limits, execution)
    except DoesNotFit as error:
        yield f"unit {unit.id}: {error}"
        return
    if unit.kv_blocks > room:
        size = block_bytes(demands, problem.limits)
        yield f"unit {unit.id} has {unit.kv_blocks} blocks of {size} bytes, room for {room}"
    if sum(model.quota_blocks for model in unit.models) > unit.kv_blocks:
        yield f"unit {unit.id}: the quotas are more than its blocks"


def _weights_fit(
    unit: PlannedUnit, node: Node, demands: list[Demand], problem: Problem
) -> Iterator[str]:
    """Check a unit in which not all models are resident at once: any set of them that its memory
    for weights takes leaves room for pool and buffers, and every model can be woken."""
    execution = execution_of(node.gpu, unit, problem.policy)
    size = block_bytes(demands, problem.limits)
    sizes = {
        each.name: resident_bytes(node.gpu, unit.tp, each, size, execution) for each in demands
    }
    always = sum(sizes[each.name] for each in demands if not each.may_park)
    for each in demands:
        if each.may_park and always + sizes[each.name] > unit.resident_bytes:
            yield f"unit {unit.id} has no room to wake {each.name}"
    if unit.resident_bytes >= sum(sizes.values()):
        yield f"unit {unit.id} has room for all of its models, and parks some"
    taken = unit.resident_bytes + unit.kv_blocks * size
    taken += recording_bytes(node.gpu, unit.tp, demands, execution)
    taken += max(activation_bytes(each, problem.limits, unit.tp) for each in demands)
    usable = usable_bytes(node.gpu, unit.tp, execution)
    if taken > usable:
        yield f"unit {unit.id} takes {taken} bytes, {usable} usable"
    # a parked model has none: only quotas of those that stay add up
    kept = {each.name for each in demands if not each.may_park}
    quotas = {model.name: model.quota_blocks for model in unit.models}
    num_kept = sum(quotas[name] for name in kept)
    if num_kept > unit.kv_blocks or max(quotas.values()) > unit.kv_blocks:
        yield f"unit {unit.id}: the quotas are more than its blocks"
