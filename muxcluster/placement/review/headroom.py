"""Headroom: the largest factor by which rates may grow with all still served within the targets.

Its inverse, the strain, is what the search lowers: 1 means that a unit can just serve its rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Estimator, Offer, Tenant, UnitEstimate
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.review.assess import fullest, node_of, offers_of

# Strain from which a unit counts as one whose target fails at any rate; then also the target's
# ratio to the idle unit's latency counts, so that a faster mesh is still better than a slower one.
_HOPELESS = 10.0
_WORST = 1000.0
_MOST_GROWTH = 1024.0  # factors beyond this one are not told apart
_BISECTIONS = 12
_BEYOND = 0.01  # how far beyond the headroom its limit is looked for
_IDLE = 1e-6  # factor at which a unit counts as idle
_SERVED = 1 - 1e-9


def strain(found: UnitEstimate) -> float:
    """Return 1 / headroom of a unit, at most 1000, from its estimate alone.

    Load grows with the rates. A latency grows from the idle unit's t0 to t1 at the load ρ, and on
    as waits do: t(g) = t0 + (t1 - t0) g (1 - ρ) / (1 - g ρ). This meets a target at the growth g
    with 1 / g = ρ + (1 - ρ) (t1 - t0) / (target - t0).
    """
    most = found.load
    latest = found.latencies() if any(map(_has_target, found.tenants)) else ()
    loads = found.loads
    for tenant, late, share in zip(found.tenants, latest, loads.decode_shares, strict=False):
        cost, demand = tenant.cost, tenant.cost.demand
        if demand.ttft_s is not None:
            idle_s = cost.prefill_job_s(loads.prefill_share) * loads.slowdown
            most = max(most, _target_strain(demand.ttft_s, idle_s, late.ttft_s.high, found.load))
        if demand.tpot_s is not None:
            idle_s = cost.step_s(1.0, share) * loads.slowdown
            most = max(most, _target_strain(demand.tpot_s, idle_s, late.tpot_s.high, found.load))
    return min(most, _WORST)


def _has_target(tenant: Tenant) -> bool:
    return tenant.cost.demand.ttft_s is not None or tenant.cost.demand.tpot_s is not None


def _target_strain(target_s: float, idle_s: float, now_s: float, load: float) -> float:
    if idle_s >= target_s:
        return _HOPELESS * idle_s / target_s
    part = max(0.0, now_s - idle_s) / (target_s - idle_s)
    return min(_HOPELESS, load + (1 - load) * part if load < 1 else load * max(1.0, part))


@dataclass(frozen=True, slots=True)
class Headroom:
    """Headroom of a plan, and what ends it first."""

    factor: float
    unit: str  # id
    limit: str  # a resource of that unit, or "latency target of MODEL"
    models: tuple[str, ...]  # on that unit


def headroom(problem: Problem, plan: Plan) -> Headroom:
    """Return the headroom of the unit that has the least; at most 1024.

    A factor below 1 is the part of the rates that is served within the targets. Targets that a unit
    misses even when it is idle do not count. Raises ValueError as `assess`.
    """
    estimator = Estimator(problem)
    units = [_Growing.of(estimator, plan, unit) for unit in plan.units]
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
        self, estimator: Estimator, unit: PlannedUnit, gpu: Gpu, offers: Sequence[Offer]
    ) -> None:
        self.unit = unit
        self.offers = offers
        self._estimator = estimator
        self._gpu = gpu
        self.strain = strain(self._at(1.0))
        self._reachable = [not missed for missed in _missed(self._at(_IDLE))]

    @classmethod
    def of(cls, estimator: Estimator, plan: Plan, unit: PlannedUnit) -> "_Growing":
        """Raises ValueError if the unit's node or models are not the problem's, or do not fit."""
        gpu = node_of(estimator.problem, unit).gpu
        offers = offers_of(estimator.problem, plan, unit)
        return cls(estimator, unit, gpu, offers)

    def holds(self, factor: float) -> bool:
        """Return whether all is served within the targets at this factor."""
        found = self._at(factor)
        return min(found.served) >= _SERVED and not any(self._late(found))

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
        return fullest(found)

    def _late(self, found: UnitEstimate) -> list[bool]:
        missed = _missed(found)
        return [now and once for now, once in zip(missed, self._reachable, strict=True)]

    def _at(self, factor: float) -> UnitEstimate:
        offers = [(index, rate * factor) for index, rate in self.offers]
        found = self._estimator.unit(self._gpu, self.unit.tp, offers)
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
