"""A layout: units on meshes, with its merit."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Estimator, Offer, UnitEstimate
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.search.gpus import Kind

# Extra worth of a request/s on an idle unit over one on a full unit, relative to serving it: a
# tie-breaker between plans of (nearly) equal value.
_HEADROOM = 1e-4
_WORST_LOAD = 100.0
_UNMET_PER_GPU = 0.001  # fewest-gpus: unmet share of a model's rate that is worth a GPU


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A mesh of `tp` GPUs with the models offered to it, and what it adds to the merit."""

    gpu: Gpu
    tp: int
    offers: tuple[Offer, ...]
    estimate: UnitEstimate
    merit: float

    @property
    def crowding(self) -> float:
        """Cheap estimate of how little room is left: load, then KV blocks."""
        return self.estimate.load - 1e-12 * self.estimate.kv_blocks

    def rate_of(self, index: int) -> float:
        """Requests/s of a model offered here, else 0."""
        return next((rate for each, rate in self.offers if each == index), 0.0)


class UnitBuilder:
    """Builds units for one problem and computes what they add to the merit.

    meshes: every kind and size of mesh that the nodes have, small ones of a kind first.
    """

    def __init__(self, estimator: Estimator, kinds: Sequence[Kind]) -> None:
        self.estimator = estimator
        self.kinds = {kind.gpu: kind for kind in kinds}
        self.meshes = tuple((kind.gpu, tp) for kind in kinds for tp in sorted(kind.slots))
        demands = estimator.problem.demands
        self._total_rate = sum(each.rate for each in demands)
        self.total_worth = sum(
            each.rate * each.worth(estimator.problem.objective) for each in demands
        )

    def unit(self, gpu: Gpu, tp: int, offers: Iterable[Offer]) -> PlacedUnit | None:
        """Build a unit; None if the models do not fit."""
        ordered = tuple(sorted(offers))
        estimate = self.estimator.unit(gpu, tp, ordered)
        if estimate is None:
            return None
        return PlacedUnit(gpu, tp, ordered, estimate, self._merit(tp, ordered, estimate))

    def _merit(self, tp: int, offers: Iterable[Offer], estimate: UnitEstimate) -> float:
        """Return what the search maximises: the objective, then headroom."""
        offered = sum(rate for _, rate in offers)
        headroom = -_HEADROOM * offered * min(estimate.load, _WORST_LOAD)
        if self.estimator.problem.objective == "fewest-gpus":
            return estimate.value / _UNMET_PER_GPU - tp + headroom / self._total_rate
        return estimate.value + headroom

    def room(self, units: Iterable[PlacedUnit]) -> "Room":
        """Count the meshes of `units`."""
        used: dict[Gpu, Counter[int]] = {gpu: Counter() for gpu in self.kinds}
        for unit in units:
            used[unit.gpu][unit.tp] += 1
        return Room(self.kinds, used)


class Room:
    """Counts of the meshes in use. `take` and `free` are exact opposites."""

    def __init__(self, kinds: dict[Gpu, Kind], used: dict[Gpu, Counter[int]]) -> None:
        self._kinds = kinds
        self._used = used

    def fits(self, gpu: Gpu, tp: int) -> bool:
        """Return whether one more mesh fits."""
        used = self._used[gpu]
        used[tp] += 1
        fits = self._kinds[gpu].holds(used)
        used[tp] -= 1
        return fits

    def take(self, gpu: Gpu, tp: int) -> None:
        """Count one more mesh in use."""
        self._used[gpu][tp] += 1

    def free(self, gpu: Gpu, tp: int) -> None:
        """Count one mesh less."""
        self._used[gpu][tp] -= 1

    def num_idle(self) -> int:
        return sum(
            kind.num_gpus - sum(tp * number for tp, number in self._used[gpu].items())
            for gpu, kind in self._kinds.items()
        )


def merit(units: Iterable[PlacedUnit]) -> float:
    """Return the merit of a layout, which the search maximises."""
    return sum(unit.merit for unit in units)


def value(units: Iterable[PlacedUnit]) -> float:
    """Return the objective of a layout, without headroom."""
    return sum(unit.estimate.value for unit in units)
