"""Time to first token and per output token on a unit at the load it serves, as quantiles."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import beside, turns
from muxcluster.placement.estimator.flow import Flow
from muxcluster.placement.estimator.queueing import Quantiles, places_wait
from muxcluster.placement.estimator.shares import Loads, Tenant


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of one model's requests, and its mean sequences in decode."""

    ttft_s: Quantiles
    tpot_s: Quantiles
    batch: float

    def meets(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Return whether 95 % of requests meet each target; None is no target."""
        return (ttft_s is None or self.ttft_s.high <= ttft_s) and (
            tpot_s is None or self.tpot_s.high <= tpot_s
        )


def flows(tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]) -> tuple[Flow, ...]:
    """Return the steady state at these rates; each serves all of its rate or what it can."""
    if loads.is_mixed:
        return turns.in_mixed_jobs(tenants, rates)
    return beside.in_own_jobs(tenants, loads, rates)


def served_rates(tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]) -> list[float]:
    """Return the requests/s that each model serves of these rates."""
    if loads.is_mixed:
        return [turn.rate for turn in turns.steady(tenants, rates)]
    return [each.rate for each in beside.steady(tenants, loads, rates)[0]]


def latencies(
    tenants: Sequence[Tenant], loads: Loads, served: Sequence[float]
) -> tuple[Latency, ...]:
    """Return each model's latency if `served` of its rate is admitted.

    Requests that are not admitted (a fraction below 1) do not count as waiting. A unit that may run
    its jobs in two ways does so by what it measures: it is promised what both of them keep.
    """
    rates = [each.rate * share for each, share in zip(tenants, served, strict=True)]
    found = _latencies(tenants, loads, rates)
    if loads.other is None:
        return found
    others = _latencies(tenants, loads.other, rates)
    return tuple(_worse(first, second) for first, second in zip(found, others, strict=True))


def _latencies(
    tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]
) -> tuple[Latency, ...]:
    found = flows(tenants, loads, rates)
    return tuple(latency_of(tenant, flow) for tenant, flow in zip(tenants, found, strict=True))


def _worse(first: Latency, second: Latency) -> Latency:
    return Latency(
        max(first.ttft_s, second.ttft_s, key=lambda each: each.high),
        max(first.tpot_s, second.tpot_s, key=lambda each: each.high),
        first.batch,
    )


def latency_of(tenant: Tenant, flow: Flow) -> Latency:
    """Return the latency of one model: the flow's, and the wait for a row or room for its KV."""
    first = flow.first.quantiles()
    free = max(flow.full_rate - flow.rate, 0.02 * flow.full_rate)
    wait = places_wait(flow.rows, flow.variance, tenant.batch, free)
    return Latency(
        Quantiles(first.median + wait.median, first.high + wait.high),
        flow.gap.quantiles(),
        flow.rows,
    )
