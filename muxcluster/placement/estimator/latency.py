"""Time to first token and per output token on a unit at the load it serves, as quantiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.placement.estimator import beside, turns
from muxcluster.placement.estimator.queueing import Flow, Quantiles, places_wait
from muxcluster.placement.estimator.shares import Loads, Tenant
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.problem import LENGTH_CV2

_LEAST_FREE = 0.02  # of what a model serves with all rows taken
# Predicted gains of sharing within this of 1 leave open how a unit will run: the judge measures
# with a margin of 0.02, the rest is the estimate's own error.
_OPEN = 0.2


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of one model's requests, and its mean sequences in decode."""

    ttft_s: Quantiles
    tpot_s: Quantiles
    batch: float
    waking_s: Quantiles = Quantiles(0.0, 0.0)  # the part of ttft_s until its model is resident

    @property
    def awake(self) -> "Latency":
        """Of requests whose model is resident."""
        high = self.ttft_s.high - self.waking_s.high
        first = Quantiles(self.ttft_s.median - self.waking_s.median, high)
        return replace(self, ttft_s=first, waking_s=Quantiles(0.0, 0.0))

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
    its jobs in two ways does so by what it measures: it is promised what both of them keep, but no
    first tokens that wait for rows in a way which clearly loses. Steps of jobs side by side are
    predicted a fifth too short at times, so the time of a token is the longer one in any case.
    Where models share memory for weights, first tokens also wait for their model's.
    """
    rates = [each.rate * share for each, share in zip(tenants, served, strict=True)]
    found = _of_either_way(tenants, loads, rates)
    if loads.weight_memory is None:
        return found
    return _with_waits(tenants, loads.weight_memory, rates, found)


def _with_waits(
    tenants: Sequence[Tenant],
    weight_memory: WeightMemory,
    rates: Sequence[float],
    found: Sequence[Latency],
) -> tuple[Latency, ...]:
    """Return the latencies where not all models are resident at once.

    found: with all resident. Of the models that would have requests at the same time, only those
    that are resident share the unit's steps, which are shorter by so much.
    """
    spans_s = [_span_s(each, late) for each, late in zip(tenants, found, strict=True)]
    at_once = sum(-math.expm1(-rate * span) for rate, span in zip(rates, spans_s, strict=True))
    num_always = sum(size == 0 for size in weight_memory.model_bytes)
    shorter = min(1.0, (num_always + weight_memory.num_at_once) / max(at_once, 1e-9))
    found = [replace(late, tpot_s=late.tpot_s.times(shorter)) for late in found]
    spans_s = [_span_s(each, late) for each, late in zip(tenants, found, strict=True)]
    return tuple(
        replace(late, ttft_s=_sum(late.ttft_s, wait), waking_s=wait)
        for late, wait in zip(found, weight_memory.waits(rates, spans_s), strict=True)
    )


def in_time(
    tenants: Sequence[Tenant], loads: Loads, served: Sequence[float], late: Sequence[Latency]
) -> tuple[float, ...]:
    """Return by model the part of the served requests whose weights come before the target of the
    first token, less what it takes after that. late: `latencies` at these parts."""
    if loads.weight_memory is None:
        return (1.0,) * len(tenants)
    rates = [each.rate * share for each, share in zip(tenants, served, strict=True)]
    targets_s = [
        math.inf if (target_s := tenant.cost.demand.ttft_s) is None else target_s - each.ttft_s.high
        for tenant, each in zip(tenants, (each.awake for each in late), strict=True)
    ]
    return loads.weight_memory.in_time(rates, spans(tenants, late), targets_s)


def spans(tenants: Sequence[Tenant], late: Sequence[Latency]) -> list[float]:
    """Return by model the seconds of a request from when its model is resident."""
    return [_span_s(tenant, each.awake) for tenant, each in zip(tenants, late, strict=True)]


def _span_s(tenant: Tenant, late: Latency) -> float:
    """Seconds of a request from when its model is resident."""
    return late.ttft_s.median + tenant.cost.demand.output_tokens * late.tpot_s.median


def _of_either_way(
    tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]
) -> tuple[Latency, ...]:
    """Return the latencies with all models resident."""
    found = _latencies(tenants, loads, rates)
    if loads.other is None:
        return found
    others = _latencies(tenants, loads.other, rates)
    worse = tuple(_worse(first, second) for first, second in zip(found, others, strict=True))
    shared = loads.other if loads.is_mixed else loads
    gain = beside.gain_over_mixed(tenants, shared, rates)
    if abs(gain - 1) <= _OPEN:
        return worse
    likely = found if (gain > 1) is not loads.is_mixed else others
    return tuple(
        replace(late, ttft_s=only.ttft_s) for late, only in zip(worse, likely, strict=True)
    )


def _latencies(
    tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]
) -> tuple[Latency, ...]:
    found = flows(tenants, loads, rates)
    pool = _pool_wait(tenants, found)
    return tuple(_latency(tenant, flow, pool) for tenant, flow in zip(tenants, found, strict=True))


def _worse(first: Latency, second: Latency) -> Latency:
    return Latency(
        max(first.ttft_s, second.ttft_s, key=lambda each: each.high),
        max(first.tpot_s, second.tpot_s, key=lambda each: each.high),
        first.batch,
    )


def _latency(tenant: Tenant, flow: Flow, pool: Quantiles) -> Latency:
    """pool: wait for KV blocks that all models share."""
    first = flow.first.quantiles()
    wait = max(pool, _rows_wait(tenant, flow), key=lambda each: each.high)
    return Latency(_sum(first, wait), flow.gap.quantiles(), flow.rows)


def _sum(first: Quantiles, second: Quantiles) -> Quantiles:
    return Quantiles(first.median + second.median, first.high + second.high)


def _rows_wait(tenant: Tenant, flow: Flow) -> Quantiles:
    """Wait for a row, or for blocks of the model's quota."""
    rows, by_kv = float(tenant.cost.max_rows), 1.0
    if tenant.pool_blocks is None and tenant.rows < rows:
        rows, by_kv = tenant.rows, 1 + LENGTH_CV2
    return places_wait(flow.rows, by_kv * flow.variance, rows, _free(flow))


def _pool_wait(tenants: Sequence[Tenant], found: Sequence[Flow]) -> Quantiles:
    """Wait for blocks of a pool that all models share, in which sequences scatter in length."""
    pool = tenants[0].pool_blocks
    if pool is None:
        return Quantiles(0.0, 0.0)
    blocks = [tenant.cost.sequence_blocks for tenant in tenants]
    taken = sum(each * flow.rows for each, flow in zip(blocks, found, strict=True))
    variance = sum(each**2 * flow.variance for each, flow in zip(blocks, found, strict=True))
    return places_wait(taken, (1 + LENGTH_CV2) * variance, pool, sum(map(_free, found)))


def _free(flow: Flow) -> float:
    """Requests/s by which a queue for rows gets shorter."""
    return max(flow.full_rate - flow.rate, _LEAST_FREE * flow.full_rate)
