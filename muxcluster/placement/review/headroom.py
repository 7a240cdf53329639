"""Headroom: the largest factor by which rates may grow with all still served within the targets.

Its inverse is the strain (estimator/strain.py), which the search lowers.
"""

from dataclasses import dataclass

from muxcluster.placement.estimator import (
    Estimator,
    UnitEstimate,
    equal_units,
    node_of,
    offers_of,
    strain,
)
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.review.assess import fullest

_MOST_GROWTH = 1024.0  # factors beyond this one are not told apart
_BISECTIONS = 12
_BEYOND = 0.01  # how far beyond the headroom its limit is looked for
_IDLE = 1e-6  # factor at which a unit counts as idle
_SERVED = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Headroom:
    """Headroom of a plan, and what ends it first."""

    factor: float
    unit: str  # id
    limit: str  # a resource of that unit, or "latency target of MODEL"
    models: tuple[str, ...]  # on that unit


def headroom(problem: Problem, plan: Plan, *, beside_batch: bool = False) -> Headroom:
    """Return the headroom of the unit that has the least; at most 1024.

    beside_batch: as far as the batch work that the plan does is still done, too; beyond, it gives
    way to interactive requests.

    A factor below 1 is the part of the rates that is served within the targets. Targets that a unit
    misses even when it is idle do not count. Raises ValueError as `assess`.
    """
    whole = Estimator(problem) if beside_batch and problem.backlog_tokens_per_s else None
    estimator = Estimator(problem.without_backlogs())
    units = [_Growing(estimator, plan, unit, whole) for unit in plan.units]
    units.sort(key=lambda each: -each.strain)
    least, factor = units[0], units[0].headroom()
    for each in units[1:]:
        if not each.holds(factor):
            least, factor = each, each.headroom()
    models = tuple(problem.demands[index].name for index, _ in least.offers)
    return Headroom(factor, least.unit.id, least.limit(factor), models)


class _Growing:
    """A unit of a plan at rates that grow together."""

    def __init__(
        self, estimator: Estimator, plan: Plan, unit: PlannedUnit, whole: Estimator | None
    ) -> None:
        """estimator: of interactive requests. whole: with batch work that must be done, too.

        Raises ValueError if the unit's node or models are not the problem's, or do not fit.
        """
        self.unit = unit
        self.offers = tuple(sorted(offers_of(estimator.problem, plan, unit)))
        self._estimator = estimator
        self._gpu = node_of(estimator.problem, unit).gpu
        self._num_units = len(equal_units(plan, unit))
        self.strain = strain(self._at(1.0))
        self._reachable = [not missed for missed in _missed(self._at(_IDLE))]
        self._whole = whole
        self._parts = [] if whole is None else self._parts_done(whole)

    def holds(self, factor: float) -> bool:
        """Return whether all is served within the targets at this factor."""
        found = self._at(factor)
        if min(found.served) < _SERVED or any(self._late(found)):
            return False
        return self._does_batch(found)

    def _does_batch(self, found: UnitEstimate) -> bool:
        """Return whether batch work is done as planned beside `found`."""
        if self._whole is None or not any(self._parts):
            return True
        backlogged = self._whole.backlogged(found, self._gpu, self.offers)
        return backlogged is None or backlogged.holds(self._parts)

    def _parts_done(self, whole: Estimator) -> list[float]:
        found = whole.unit(self._gpu, self.unit.tp, self.offers, self._num_units)
        if found is None or found.backlog is None:
            return []
        batch = found.backlog
        return [
            done / asked if asked else 0.0
            for done, asked in zip(batch.done, batch.asked, strict=True)
        ]

    def headroom(self) -> float:
        """Return the factor by doubling and bisection."""
        low, high = 0.0, 1.0
        while high < _MOST_GROWTH and self.holds(high):
            low, high = high, 2 * high
        for _ in range(_BISECTIONS if high < _MOST_GROWTH or low == 0 else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low

    def limit(self, factor: float) -> str:
        """Return what fails just beyond `factor`."""
        found = self._at(factor * (1 + _BEYOND))
        late = self._late(found)
        if any(late):
            return f"latency target of {found.tenants[late.index(True)].cost.demand.name}"
        if min(found.served) >= _SERVED and not self._does_batch(found):
            return "batch work"
        return fullest(found)

    def _late(self, found: UnitEstimate) -> list[bool]:
        missed = _missed(found)
        return [now and once for now, once in zip(missed, self._reachable, strict=True)]

    def _at(self, factor: float) -> UnitEstimate:
        offers = [(index, rate * factor) for index, rate in self.offers]
        found = self._estimator.unit(self._gpu, self.unit.tp, offers, self._num_units)
        if found is None:
            refusal = self._estimator.refusal(self._gpu, self.unit.tp, offers)
            raise ValueError(f"unit {self.unit.id}: {refusal}")
        return found


def _missed(found: UnitEstimate) -> list[bool]:
    """Return by model whether its latencies exceed its targets."""
    return [
        not late.meets(tenant.cost.demand.ttft_s, tenant.cost.demand.tpot_s)
        for tenant, late in zip(found.tenants, found.latencies(), strict=True)
    ]
