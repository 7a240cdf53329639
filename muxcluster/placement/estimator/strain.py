"""Strain: the inverse of the headroom, from a unit's estimate alone; the search lowers it.

1 means that a unit can just serve its rates within the targets.
"""

from muxcluster.placement.estimator.shares import Tenant
from muxcluster.placement.estimator.unit import UnitEstimate

# Strain from which a unit counts as one whose target fails at any rate; then also the target's
# ratio to the idle unit's latency counts, so that a faster mesh is still better than a slower one.
_HOPELESS = 10.0
_WORST = 1000.0


def strain(found: UnitEstimate) -> float:
    """Return 1 / headroom of a unit, at most 1000, from its estimate alone.

    Load grows with the rates. A latency grows from the idle unit's t0 to t1 at the load ρ, and on
    as waits do: t(g) = t0 + (t1 - t0) g (1 - ρ) / (1 - g ρ). This meets a target at the growth g
    with 1 / g = ρ + (1 - ρ) (t1 - t0) / (target - t0). Waits for weights hardly depend on the
    rates, as models are asked for and parked that much sooner: there it is the latency's part of
    the target.
    """
    most = found.load
    latest = found.latencies() if any(map(_has_target, found.tenants)) else ()
    loads = found.loads
    for tenant, late, share in zip(found.tenants, latest, loads.decode_shares, strict=False):
        cost, demand = tenant.cost, tenant.cost.demand
        if demand.ttft_s is not None and late.waking_s.high:
            most = max(most, late.ttft_s.high / demand.ttft_s)
        elif demand.ttft_s is not None:
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
