"""Reports from the records of a simulation."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.problem import Demand
from muxcluster.sim.report.report import FairnessReport, GroupReport, Number, SpreadReport
from muxcluster.sim.report.slo import BaseLatency, base_s
from muxcluster.workload.metrics import window as metrics
from muxcluster.workload.metrics.fairness import fairness
from muxcluster.workload.metrics.records import Ending, Records
from muxcluster.workload.metrics.slo import attainment_at_scales, attainment_of_targets
from muxcluster.workload.metrics.window import Window

_PERCENTS = np.arange(101)


def group_report(
    records: Records,
    window: Window,
    bases: Mapping[str, BaseLatency],
    demands: Mapping[str, Demand],
    scales: Sequence[float],
) -> GroupReport:
    """Return the report of all records together. Raises KeyError for a model without base or
    demand.
    """
    found = metrics.figures(records, window)
    arrived = metrics.arrived(records, window)
    done = arrived.where(arrived.is_finished)
    offered = len(arrived) / window.duration_s
    shares = attainment_at_scales(arrived, base_s(arrived, bases), scales)
    through = found.throughput
    return GroupReport(
        num_requests=len(arrived),
        num_refused=int(np.count_nonzero(arrived.rows["ending"] == Ending.REJECTED)),
        offered_per_s=offered,
        requests_per_s=through.requests_per_s,
        tokens_per_s=through.output_tokens_per_s,
        served_share=through.requests_per_s / offered if offered else None,
        finished_share=len(done) / len(arrived) if len(arrived) else None,
        ttft=spread_report(metrics.ttft_s(done)),
        tpot=spread_report(metrics.tpot_s(done)),
        latency=spread_report(metrics.latency_s(done)),
        normalised=spread_report(metrics.normalised_s(done)),
        attainment={f"{k:g}": number(s) for k, s in zip(scales, shares, strict=True)},
        target_attainment=_of_targets(arrived, demands),
        time_s={part: number(value) for part, value in found.time_s.items()},
    )


def fairness_report(
    use: Mapping[str, float], offered: Mapping[str, float]
) -> FairnessReport | None:
    """Return fairness over the models with requests; None where nothing was used."""
    asked = {name: rate for name, rate in offered.items() if rate > 0}
    if not asked or not sum(use[name] for name in asked) > 0:
        return None
    found = fairness(use, asked)
    return FairnessReport(
        max_over_min=number(found.max_over_min),
        jain=found.jain,
        least_share=found.least_share,
        least_model=found.least_model,
    )


def worst_model(models: Mapping[str, GroupReport], slo_scale: float) -> str | None:
    """Return the model of least attainment, then of least served share; None without requests."""
    key = f"{slo_scale:g}"
    asked = [name for name, group in models.items() if group.num_requests]

    def suffering(name: str) -> tuple[float, float]:
        group = models[name]
        return group.attainment[key] or 0.0, group.served_share or 0.0

    return min(asked, key=suffering, default=None)


def number(value: float) -> Number:
    """Return the value; None for NaN and infinity, which JSON lacks."""
    return float(value) if math.isfinite(value) else None


def spread_report(seconds: NDArray[np.float64]) -> SpreadReport:
    """Return the spread of the values that are not NaN."""
    found = metrics.spread(seconds)
    kept = seconds[~np.isnan(seconds)]
    places = np.percentile(kept, _PERCENTS).tolist() if kept.size else []
    return SpreadReport(
        count=found.count,
        mean=number(found.mean),
        p50=number(found.p50),
        p90=number(found.p90),
        p99=number(found.p99),
        quantiles=tuple(places),
    )


def _of_targets(arrived: Records, demands: Mapping[str, Demand]) -> Number:
    """Return attainment over models with targets; None where no request is of such a model."""
    ttft, tpot = (np.full(len(arrived.models), np.nan) for _ in range(2))
    for index, name in enumerate(arrived.models):
        demand = demands[name]
        if demand.ttft_s is not None and demand.tpot_s is not None:
            ttft[index], tpot[index] = demand.ttft_s, demand.tpot_s
    model = arrived.rows["model"]
    has_target = ~np.isnan(ttft[model])
    model = model[has_target]
    return number(attainment_of_targets(arrived.where(has_target), ttft[model], tpot[model]))
