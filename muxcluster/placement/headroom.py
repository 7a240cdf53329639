"""Headroom: the largest factor by which rates may grow with all still served within the targets.

Its inverse, the strain, is what the search lowers: 1 means that a unit can just serve its rates.
"""

from collections.abc import Sequence

from muxcluster.placement.estimator import Estimator, Offer, UnitEstimate
from muxcluster.placement.estimator.latency import latencies
from muxcluster.placement.hardware import Gpu

# Strain from which a unit counts as one whose target fails at any rate; then also the target's
# ratio to the idle unit's latency counts, so that a faster mesh is still better than a slower one.
_HOPELESS = 10.0
_WORST = 100.0
_MOST_GROWTH = 1024.0  # factors beyond this one are not told apart
_BISECTIONS = 12
_SERVED = 1 - 1e-9


def strain(found: UnitEstimate) -> float:
    """Return 1 / headroom of a unit, at most 100, from its estimate alone.

    Load grows with the rates. A latency grows from the idle unit's t0 to t1 at the load ρ, and on
    as waits do: t(g) = t0 + (t1 - t0) g (1 - ρ) / (1 - g ρ). This meets a target at the growth g
    with 1 / g = ρ + (1 - ρ) (t1 - t0) / (target - t0).
    """
    most = found.load
    limited = [
        position
        for position, tenant in enumerate(found.tenants)
        if tenant.cost.demand.ttft_s is not None or tenant.cost.demand.tpot_s is not None
    ]
    if limited:
        idle = latencies(found.tenants, found.loads, [0.0] * len(found.tenants))
        now = found.latencies()
        for position in limited:
            demand = found.tenants[position].cost.demand
            before, after = idle[position], now[position]
            for target, idle_s, now_s in (
                (demand.ttft_s, before.ttft_s, after.ttft_s),
                (demand.tpot_s, before.tpot_s, after.tpot_s),
            ):
                if target is not None:
                    most = max(most, _target_strain(target, idle_s, now_s, found.load))
    return min(most, _WORST)


def _target_strain(target_s: float, idle_s: float, now_s: float, load: float) -> float:
    if idle_s >= target_s:
        return _HOPELESS * idle_s / target_s
    part = max(0.0, now_s - idle_s) / (target_s - idle_s)
    return min(_HOPELESS, load + (1 - load) * part if load < 1 else load * max(1.0, part))


def headroom(estimator: Estimator, gpu: Gpu, tp: int, offers: Sequence[Offer]) -> float:
    """Return a unit's headroom by bisection; below 1 if it does not serve all within the targets.

    Targets that the unit misses even when it is idle do not count. Raises ValueError if the models
    do not fit on the mesh.
    """
    low, high = 0.0, 1.0
    hopeful = _met(_grown(estimator, gpu, tp, offers, 1e-6))

    def holds(factor: float) -> bool:
        found = _grown(estimator, gpu, tp, offers, factor)
        met = _met(found)
        return min(found.served) >= _SERVED and all(
            now or not hope for now, hope in zip(met, hopeful, strict=True)
        )

    while high < _MOST_GROWTH and holds(high):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _grown(
    estimator: Estimator, gpu: Gpu, tp: int, offers: Sequence[Offer], factor: float
) -> UnitEstimate:
    found = estimator.unit(gpu, tp, [(index, rate * factor) for index, rate in offers])
    if found is None:
        raise ValueError(str(estimator.refusal(gpu, tp, offers)))
    return found


def _met(found: UnitEstimate) -> list[bool]:
    """Return by model whether its latencies meet its targets."""
    return [
        late.meets(tenant.cost.demand.ttft_s, tenant.cost.demand.tpot_s)
        for tenant, late in zip(found.tenants, found.latencies(), strict=True)
    ]
