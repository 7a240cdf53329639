"""Which models of a unit are resident at once, and the memory that the others share."""

from collections.abc import Iterator, Sequence

from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.execution import Execution
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import recorded_bytes, wake_s, weight_bytes
from muxcluster.placement.problem import Demand

# Considered numbers of models that are resident at once.
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def counts_at_once(demands: Sequence[Demand]) -> Iterator[int | None]:
    """Yield how many of the models that may be parked are resident at once: all (None), then fewer
    and fewer."""
    yield None
    num_movable = sum(demand.may_park for demand in demands)
    yield from (count for count in sorted(_COUNTS, reverse=True) if count < num_movable)


def models_at_once(
    costs: Sequence[ModelCost], gpu: Gpu, execution: Execution, num_at_once: int | None
) -> list[ModelCost]:
    """Return the models for whose weights there is memory at the same time: those that are always
    resident, and of the others so many of the largest."""
    if num_at_once is None:
        return list(costs)
    others = [cost for cost in costs if cost.demand.may_park]
    others.sort(key=lambda cost: -resident_cost_bytes(cost, gpu, execution))
    return [cost for cost in costs if not cost.demand.may_park] + others[:num_at_once]


def weight_memory_of(
    costs: Sequence[ModelCost], at_once: Sequence[ModelCost], gpu: Gpu, execution: Execution
) -> WeightMemory | None:
    """Return the memory in which models that may be parked take turns; None if all of them are
    resident at once, so that none moves."""
    if len(at_once) == len(costs):
        return None
    sizes, seconds = [], []
    for cost in costs:
        may_park = cost.demand.may_park
        weights = weight_bytes(cost.demand, cost.tp) // cost.tp
        sizes.append(resident_cost_bytes(cost, gpu, execution) if may_park else 0)
        seconds.append(wake_s(gpu, weights) if may_park else 0.0)
    return WeightMemory(
        num_at_once=sum(cost.demand.may_park for cost in at_once),
        resident_bytes=sum(resident_cost_bytes(cost, gpu, execution) for cost in at_once),
        model_bytes=tuple(sizes),
        wake_s=tuple(seconds),
    )


def resident_cost_bytes(cost: ModelCost, gpu: Gpu, execution: Execution) -> int:
    """Compute `memory.resident_bytes` from memoised parts."""
    return cost.static_bytes + recorded_bytes(gpu, cost.tp, cost.demand, execution)
