"""A layout: units on meshes, with its merit and its rank among layouts."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from muxcluster.placement.estimator import Estimator, Offer, UnitEstimate, strain
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.search.gpus import Kind

# Part of the demand's worth that a full GPU per model costs: a tie-breaker between layouts of
# (nearly) equal value.
_STRAIN = 1e-4
# Strain up to which units need no relief: replicas of a model that 20 times its rate would not fill
# only take memory and time to load.
EASY = 0.05
_POWER = 4  # of a unit's strain: the higher, the more the fullest unit alone decides
# How much more a unit's strain counts for each further model on it, and for each model of which it
# has only a part of the rate.
_NEIGHBOUR = 0.05
_REPLICA = 0.25
_MANY_MODELS = 2000  # more than that are placed with few alternatives each
_FEW_SIZES = 1
_UNMET_PER_GPU = 0.001  # fewest-gpus: unmet share of a model's rate that is worth a GPU
_SAME_OBJECTIVE = 1e-6  # of the demand's worth: less is no difference
# Part of the objective that all batch work counts as in single steps of the search; between layouts
# it only decides where the objective is equal (`UnitBuilder.rank`).
_BACKLOG = 0.01
_SAME_BACKLOG = 0.01  # of all batch work
_SAME_STRAIN = 0.01  # of a unit; above 1, relative
_SAME_EASE = 1e-6  # relative


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A mesh of `tp` GPUs with the models offered to it, and what it adds to the merit.

    Or `count` equal ones with the same models, of which a request goes to the one that has its
    model's weights; offers, and what is added to the merit, are then those of all.
    """

    gpu: Gpu
    tp: int
    offers: tuple[Offer, ...]
    estimate: UnitEstimate  # of one of them
    goal: float  # its part of the objective
    strain: float  # 1 / headroom (estimator/strain.py)
    effort: float  # cost of its strain, before its weight against the goal
    merit: float  # goal less the weighted effort
    missed: float  # requests/s that are offered and not served
    done: float = 0.0  # done, undone: batch tokens/s that are asked here
    undone: float = 0.0
    count: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tp * self.count

    @property
    def crowding(self) -> float:
        """Cheap estimate of how little room is left: strain, then KV blocks."""
        return self.strain - 1e-12 * self.estimate.kv_blocks

    def rate_of(self, index: int) -> float:
        """Requests/s of a model offered here, else 0."""
        return next((rate for each, rate in self.offers if each == index), 0.0)


def _are_one_cache(estimate: UnitEstimate) -> bool:
    return estimate.weight_memory is None or estimate.weight_memory.is_one_cache


def _effort(tp: int, estimate: UnitEstimate, strained: float) -> float:
    """Return the cost of a unit's strain.

    Above EASY it is convex, so that the fullest units are relieved first. It is per GPU, so that a
    wider mesh must gain as much as other uses of its GPUs would; and higher for models that share
    the unit or have replicas, so that they do so where that gains something.
    """
    whole = (1 - _SAME_EASE) / estimate.num_units
    parts = sum(each.rate < each.cost.demand.rate * whole for each in estimate.tenants)
    neighbours = len(estimate.tenants) - 1
    if strained <= EASY:
        full = strained * EASY ** (_POWER - 1)
    elif strained <= 1:
        full = strained**_POWER
    else:
        full = 1 + _POWER * math.log(strained)
    most = tp * full * (1 + _NEIGHBOUR * neighbours + _REPLICA * parts)
    return most + EASY**_POWER * (neighbours + parts) / 2


# (objective, batch work done, headroom, ease) of a layout, greater where it is better; all but the
# last are rounded
Rank = tuple[int, int, int, float]


class UnitBuilder:
    """Builds units for one problem and computes what they add to the merit.

    meshes: every kind and size of mesh that the nodes have, small ones of a kind first. Units are
    memoised; builders of parts of a cluster share them. has_many: thousands of models.
    """

    def __init__(self, estimator: Estimator, kinds: Sequence[Kind]) -> None:
        self.estimator = estimator
        self.kinds = {kind.gpu: kind for kind in kinds}
        self.meshes = tuple((kind.gpu, tp) for kind in kinds for tp in sorted(kind.slots))
        demands = estimator.problem.demands
        self.total_worth = sum(
            each.rate * each.worth(estimator.problem.objective) for each in demands
        )
        is_counted = estimator.problem.objective == "fewest-gpus"
        # in units of the objective: cost of a full GPU, least difference that counts
        self.strain_cost = _STRAIN * (1.0 if is_counted else self.total_worth / len(demands))
        most = 1 / _UNMET_PER_GPU if is_counted else self.total_worth
        self._least_goal = _SAME_OBJECTIVE * most
        tokens_per_s = estimator.problem.backlog_tokens_per_s
        self._least_done = _SAME_BACKLOG * tokens_per_s
        # in units of the objective, of a batch token/s
        worth = _BACKLOG * (1.0 if is_counted else self.total_worth)
        self._token_worth = worth / tokens_per_s if tokens_per_s else 0.0
        self.has_many = len(demands) > _MANY_MODELS
        self._rounding = 1e-6 * self._least_goal
        self._units: dict[tuple[Gpu, int, tuple[Offer, ...], int], PlacedUnit | None] = {}

    def within(self, kinds: Sequence[Kind]) -> "UnitBuilder":
        """Return a builder for a part of the cluster."""
        part = UnitBuilder(self.estimator, kinds)
        part._units = self._units
        return part

    @property
    def by_weight(self) -> list[int]:
        """Models by their weights, largest first."""
        demands = self.estimator.problem.demands
        return sorted(
            range(len(demands)), key=lambda each: weight_bytes(demands[each]), reverse=True
        )

    def unit(self, gpu: Gpu, tp: int, offers: Iterable[Offer], count: int = 1) -> PlacedUnit | None:
        """Build a unit, or several equal ones; None if the models do not fit, or their sizes differ
        too much for several."""
        key = (gpu, tp, tuple(sorted(offers)), count)
        if key not in self._units:
            self._units[key] = self._built(*key)
        return self._units[key]

    def with_offers(self, unit: PlacedUnit, offers: Iterable[Offer]) -> PlacedUnit | None:
        """Build the same unit, or equal ones, with other models or rates; None if they do not
        fit."""
        return self.unit(unit.gpu, unit.tp, offers, unit.count)

    def one_more(self, unit: PlacedUnit) -> PlacedUnit | None:
        """Build one more unit with the same models; None where they do not take turns in memory,
        so that a replica of some would do."""
        if unit.estimate.weight_memory is None:
            return None
        return self.unit(unit.gpu, unit.tp, unit.offers, unit.count + 1)

    def _built(self, gpu: Gpu, tp: int, offers: tuple[Offer, ...], count: int) -> PlacedUnit | None:
        parts = offers if count == 1 else tuple((index, rate / count) for index, rate in offers)
        estimate = self.estimator.unit(gpu, tp, parts, count)
        if estimate is None or (count > 1 and not _are_one_cache(estimate)):
            return None
        goal = count * estimate.value
        if self.estimator.problem.objective == "fewest-gpus":
            goal = goal / _UNMET_PER_GPU - tp * count
        strained = strain(estimate)
        effort = count * _effort(tp, estimate, strained)
        batch = estimate.backlog
        done, undone = (0.0, 0.0) if batch is None else (sum(batch.done), batch.undone)
        return PlacedUnit(
            gpu,
            tp,
            offers,
            estimate,
            goal,
            strained,
            effort,
            merit=goal - self.strain_cost * effort + self._token_worth * count * done,
            missed=round(sum(rate for _, rate in offers) - count * estimate.throughput, 9),
            done=count * done,
            undone=count * undone,
            count=count,
        )

    def need(self, index: int) -> float:
        """Return the GPUs that would serve a model's whole rate, on the mesh that needs the fewest;
        infinite if no mesh takes it."""
        units = self.opened(index, self.estimator.problem.demands[index].rate)
        return min((unit.tp * unit.estimate.load for unit in units), default=math.inf)

    def least_bytes(self, index: int) -> int:
        """Return the weights and tables of a model that some mesh takes, where they are least."""
        units = self.opened(index, self.estimator.problem.demands[index].rate)
        return min(unit.estimate.tenants[0].cost.static_bytes for unit in units)

    def opened(self, index: int, rate: float) -> Iterator[PlacedUnit]:
        """Yield units with this model alone, one for each mesh that takes it; of many models, only
        the smallest of each kind of GPU."""
        taken: Counter[Gpu] = Counter()
        for gpu, tp in self.meshes:
            if self.has_many and taken[gpu] >= _FEW_SIZES:
                continue
            unit = self.unit(gpu, tp, [(index, rate)])
            if unit is not None:
                taken[gpu] += 1
                yield unit

    def relief(self, more: PlacedUnit, unit: PlacedUnit) -> float:
        """Return the gain of one unit more, if its GPUs are idle otherwise: what each GPU then has
        less strain."""
        here = unit.effort * more.num_gpus / unit.num_gpus
        return more.goal - unit.goal + self.strain_cost * (here - more.effort)

    def rank(self, units: Sequence[PlacedUnit]) -> Rank:
        """Return what decides between layouts: the objective, then batch work done, then the strain
        of the fullest unit, then the effort of all."""
        fullest = max((unit.strain for unit in units), default=0.0)
        return (
            round(sum(unit.goal for unit in units) / self._least_goal),
            self._done(units),
            -round((fullest if fullest <= 1 else 1 + math.log(fullest)) / _SAME_STRAIN),
            -sum(unit.effort for unit in units),
        )

    def _done(self, units: Sequence[PlacedUnit]) -> int:
        if not self._least_done:
            return 0
        return round(sum(unit.done for unit in units) / self._least_done)

    def gain(self, new: Sequence[PlacedUnit], old: Sequence[PlacedUnit]) -> float:
        """Return the merit that `new` units have more than `old` ones; differences of the objective
        that are rounding count as none."""
        goal = sum(unit.goal for unit in new) - sum(unit.goal for unit in old)
        effort = sum(unit.effort for unit in new) - sum(unit.effort for unit in old)
        done = sum(unit.done for unit in new) - sum(unit.done for unit in old)
        gained = (goal if abs(goal) > self._rounding else 0.0) - self.strain_cost * effort
        return gained + self._token_worth * done

    def room(self, units: Iterable[PlacedUnit]) -> "Room":
        """Count the meshes of `units`."""
        used: dict[Gpu, Counter[int]] = {gpu: Counter() for gpu in self.kinds}
        for unit in units:
            used[unit.gpu][unit.tp] += unit.count
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

    def take(self, gpu: Gpu, tp: int, count: int = 1) -> None:
        """Count more meshes in use."""
        self._used[gpu][tp] += count

    def free(self, gpu: Gpu, tp: int, count: int = 1) -> None:
        """Count fewer meshes in use."""
        self._used[gpu][tp] -= count

    def num_idle(self) -> int:
        return sum(
            kind.num_gpus - sum(tp * number for tp, number in self._used[gpu].items())
            for gpu, kind in self._kinds.items()
        )


def merit(units: Iterable[PlacedUnit]) -> float:
    """Return the merit of a layout, which single steps of the search raise."""
    return sum(unit.merit for unit in units)


def is_better(rank: Rank, than: Rank) -> bool:
    """Return whether a layout of `rank` is better than one of `than`, beyond rounding."""
    return rank[:3] > than[:3] or (rank[:3] == than[:3] and rank[3] > than[3] * (1 - _SAME_EASE))


def value(units: Iterable[PlacedUnit]) -> float:
    """Return the objective of a layout, without headroom."""
    return sum(unit.count * unit.estimate.value for unit in units)


def singles(units: Iterable[PlacedUnit]) -> list[PlacedUnit]:
    """Return the units one by one, with what is offered to each of several equal ones."""
    found = []
    for unit in units:
        part = 1 / unit.count
        one = replace(
            unit,
            offers=tuple((index, rate / unit.count) for index, rate in unit.offers),
            goal=unit.goal * part,
            effort=unit.effort * part,
            merit=unit.merit * part,
            missed=unit.missed * part,
            done=unit.done * part,
            undone=unit.undone * part,
            count=1,
        )
        found += [one] * unit.count
    return found
