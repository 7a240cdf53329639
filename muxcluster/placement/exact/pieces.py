"""Splits of a model's rate among replicas: the choices of the set partition."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Offer
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder

_REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a model's rate: the number of replicas at each rate. Rates sum to the demand's."""

    index: int
    replicas: Mapping[float, int]

    def pieces(self) -> Iterable[Offer]:
        """The distinct replicas, as offers to a unit."""
        return ((self.index, rate) for rate in self.replicas)


def splits_of(builder: UnitBuilder, start: Sequence[PlacedUnit]) -> list[Split]:
    """Return the equal splits of every model into as many replicas as its rate may need, and the
    splits of the layout `start`."""
    demands = builder.estimator.problem.demands
    splits = []
    for index, demand in enumerate(demands):
        counts = [count for count in _REPLICAS if count <= _most_replicas(builder, index)]
        splits += [Split(index, {demand.rate / count: count}) for count in counts]
        rates = Counter(rate for unit in start for each, rate in unit.offers if each == index)
        if rates and all(rates != split.replicas for split in splits):
            splits.append(Split(index, dict(rates)))
    return splits


def _most_replicas(builder: UnitBuilder, index: int) -> int:
    """Return the number of meshes that the model fills alone, each of the smallest size that holds
    it, plus one, as replicas may share meshes."""
    rate = builder.estimator.problem.demands[index].rate
    sizes = sorted(builder.meshes, key=lambda mesh: mesh[1])
    alone = (builder.unit(gpu, tp, [(index, rate)]) for gpu, tp in sizes)
    smallest = next((unit for unit in alone if unit is not None), None)
    if smallest is None or smallest.estimate.load <= 1:
        return 1
    gpus = sum(kind.num_gpus for kind in builder.kinds.values())
    return min(gpus // smallest.tp, int(smallest.estimate.load) + 2)
