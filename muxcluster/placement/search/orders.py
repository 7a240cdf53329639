"""Orders in which models are given their places."""

from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.search.layout import Workshop
from muxcluster.placement.search.refusals import first_refusal


def by_weight(workshop: Workshop) -> list[int]:
    """Models by their weights, largest first."""
    demands = workshop.estimator.problem.demands
    return sorted(range(len(demands)), key=lambda index: weight_bytes(demands[index]), reverse=True)


def by_need(workshop: Workshop) -> list[int]:
    """Models by the GPU time that they ask for, most first.

    Raises DoesNotFit where no mesh takes one of them.
    """
    needs = [_need(workshop, index) for index in range(len(workshop.estimator.problem.demands))]
    return sorted(range(len(needs)), key=lambda index: needs[index], reverse=True)


def _need(workshop: Workshop, index: int) -> float:
    """GPUs that would serve all of a model's rate, on the mesh that does it with the fewest."""
    rate = workshop.estimator.problem.demands[index].rate
    alone = [workshop.unit(gpu, tp, [(index, rate)]) for gpu, tp in workshop.meshes]
    needs = [unit.tp * unit.estimate.load for unit in alone if unit is not None]
    if not needs:
        raise first_refusal(workshop, index)
    return min(needs)
