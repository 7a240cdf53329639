"""Time to first token and per output token on a unit at the load it serves."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator.shares import Loads, Tenant

_ROUNDS = 8
# Highest assumed load of a lane: waiting times grow without bound towards 1.
_FULLEST = 0.98


@dataclass(frozen=True, slots=True)
class Latency:
    """Mean seconds to the first token and per further token, and mean sequences in decode."""

    ttft_s: float
    tpot_s: float
    batch: float

    def meets(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Return whether both targets are met; None is no target."""
        return (ttft_s is None or self.ttft_s <= ttft_s) and (
            tpot_s is None or self.tpot_s <= tpot_s
        )


def latencies(
    tenants: Sequence[Tenant], loads: Loads, served: Sequence[float]
) -> tuple[Latency, ...]:
    """Return each model's latency if `served` of its rate is admitted.

    This is a fluid model: sequences in decode by Little's law, waits for the prefill lane as in an
    M/D/1 queue. Requests that are not admitted (a fraction below 1) do not count as waiting.
    """
    rates = [each.rate * share for each, share in zip(tenants, served, strict=True)]
    jobs = [each.cost.prefill_job_s(loads.prefill_share) * loads.slowdown for each in tenants]
    prefill_lane = _prefill_load(tenants, loads, rates)
    numbers = [0.0] * len(tenants)
    steps = [0.0] * len(tenants)
    for _ in range(_ROUNDS):
        steps = _steps(tenants, loads, numbers, prefill_lane)
        numbers = [
            min(float(each.batch), rate * each.cost.demand.output_tokens * step)
            for each, rate, step in zip(tenants, rates, steps, strict=True)
        ]
    wait = _wait(prefill_lane, rates, jobs)
    if not loads.shared:
        # a prefill waits for the decode step that is running
        wait += max(steps) * (1 - prefill_lane) / 2
    return tuple(
        Latency(wait + job, step, number)
        for job, step, number in zip(jobs, steps, numbers, strict=True)
    )


def _prefill_load(tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]) -> float:
    busy = sum(
        rate * each.cost.prefill(loads.prefill_share)[0] * loads.slowdown
        for each, rate in zip(tenants, rates, strict=True)
    )
    return min(_FULLEST, busy)


def _steps(
    tenants: Sequence[Tenant], loads: Loads, numbers: Sequence[float], prefill_lane: float
) -> list[float]:
    """Seconds between two tokens of a sequence, including the wait for its turn."""
    alone = [
        each.cost.step_s(max(1.0, number), share) * loads.slowdown
        for each, number, share in zip(tenants, numbers, loads.decode_shares, strict=True)
    ]
    running = [min(1.0, number) for number in numbers]
    if not loads.shared:
        others = sum(part * step for part, step in zip(running, alone, strict=True))
        return [
            (step * (1 - part) + others) / (1 - prefill_lane)
            for part, step in zip(running, alone, strict=True)
        ]
    wanted = sum(part * share for part, share in zip(running, loads.decode_shares, strict=True))
    stretch = max(1.0, wanted / (1 - loads.prefill_share * prefill_lane))
    return [step * stretch for step in alone]


def _wait(prefill_lane: float, rates: Sequence[float], jobs: Sequence[float]) -> float:
    total = sum(rates)
    if total <= 0:
        return 0.0
    mean = sum(rate * job for rate, job in zip(rates, jobs, strict=True)) / total
    return prefill_lane / (1 - prefill_lane) * mean / 2
