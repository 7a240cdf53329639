"""Orders in which the search places models."""

from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.search.layout import UnitBuilder
from muxcluster.placement.search.refusals import first_refusal


def by_weight(builder: UnitBuilder) -> list[int]:
    """Models by their weights, largest first."""
    demands = builder.estimator.problem.demands
    return sorted(range(len(demands)), key=lambda index: weight_bytes(demands[index]), reverse=True)


def by_need(builder: UnitBuilder) -> list[int]:
    """Models by the GPU time that they ask for, most first.

    Raises DoesNotFit if no mesh takes one of them.
    """
    needs = [_need(builder, index) for index in range(len(builder.estimator.problem.demands))]
    return sorted(range(len(needs)), key=lambda index: needs[index], reverse=True)


def _need(builder: UnitBuilder, index: int) -> float:
    """Return the GPUs that would serve a model's whole rate, on the mesh that needs the fewest."""
    rate = builder.estimator.problem.demands[index].rate
    alone = [builder.unit(gpu, tp, [(index, rate)]) for gpu, tp in builder.meshes]
    needs = [unit.tp * unit.estimate.load for unit in alone if unit is not None]
    if not needs:
        raise first_refusal(builder, index)
    return min(needs)
