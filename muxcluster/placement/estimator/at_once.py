"""Which models of a unit are resident at once, and the memory that the others share."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.execution import Execution
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import recorded_bytes, wake_s

# Considered numbers of models that are resident at once.
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def rooms(costs: Sequence[ModelCost], gpu: Gpu, execution: Execution) -> Iterator[int | None]:
    """Yield considered bytes for the weights of models that may be parked: for all (None), then
    less and less.

    For some numbers of the largest, and for one more of those of less size, as far as that is
    less than all.
    """
    yield None
    sizes = sorted((size for size in _turn_sizes(costs, gpu, execution) if size), reverse=True)
    sums = list(accumulate(sizes))
    found = set()
    for count in (each for each in _COUNTS if each < len(sizes)):
        rest = sizes[count:]
        for more in (0, rest[len(rest) // 2], rest[3 * len(rest) // 4], rest[-1]):
            found.add(sums[count - 1] + more)
    yield from sorted((room for room in found if room < sums[-1]), reverse=True)


def least_at_once(
    costs: Sequence[ModelCost], gpu: Gpu, execution: Execution
) -> Sequence[ModelCost]:
    """Return the models for whose weights there is memory where there is least: those that are
    always resident, and the largest of the others."""
    others = [cost for cost in costs if cost.demand.may_park]
    others.sort(key=lambda cost: -resident_cost_bytes(cost, gpu, execution))
    return [cost for cost in costs if not cost.demand.may_park] + others[:1]


def weight_memory_of(
    costs: Sequence[ModelCost], room: int, gpu: Gpu, execution: Execution, num_units: int = 1
) -> WeightMemory:
    """Return the memory in which models that may be parked take turns.

    room: its bytes. num_units: equal units with these models, see `WeightMemory`.
    """
    sizes = _turn_sizes(costs, gpu, execution)
    always = sum(
        resident_cost_bytes(cost, gpu, execution) for cost in costs if not cost.demand.may_park
    )
    sums = accumulate(sorted((size for size in sizes if size), reverse=True))
    return WeightMemory(
        num_at_once=sum(each <= room for each in sums),
        resident_bytes=always + room,
        model_bytes=sizes,
        wake_s=tuple(wake_s(gpu, cost.demand, cost.tp) for cost in costs),
        always_bytes=always,
        num_units=num_units,
    )


def _turn_sizes(costs: Sequence[ModelCost], gpu: Gpu, execution: Execution) -> tuple[int, ...]:
    """Return the bytes of each model while it is resident; 0 for one that always is."""
    return tuple(
        resident_cost_bytes(cost, gpu, execution) if cost.demand.may_park else 0 for cost in costs
    )


def resident_cost_bytes(cost: ModelCost, gpu: Gpu, execution: Execution) -> int:
    """Compute `memory.resident_bytes` from memoised parts."""
    return cost.static_bytes + recorded_bytes(gpu, cost.tp, cost.demand, execution)
