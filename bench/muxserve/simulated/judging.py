"""Compared figures of simulated cases: throughput, attainment, fair shares."""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

from bench.muxserve.simulated.cases import SLO_SCALE
from muxcluster.sim.report.report import CaseReport

_ENOUGH = 200  # Requests below which the share of a model says more of chance than of the scheduler


def requests_per_s(report: CaseReport) -> float:
    """Of all models together, over the one window."""
    return report.total.requests_per_s


def share_within_slo(report: CaseReport) -> float:
    """Of all requests, those that took at most `SLO_SCALE` times what they take alone."""
    return report.total.attainment[f"{SLO_SCALE:g}"] or 0.0


def rate_weighted(report: CaseReport, rates: Mapping[str, float]) -> float:
    """Mean requests/s over the models, weighted by rate (what the paper calls throughput)."""
    weighted = sum(rate * report.models[name].requests_per_s for name, rate in rates.items())
    return weighted / sum(rates.values())


def interval(values: Iterable[float]) -> tuple[float, float]:
    """(mean, half of the 95 % interval of the mean by the normal distribution; 0 for one value)."""
    found = list(values)
    half = 1.96 * stdev(found) / sqrt(len(found)) if len(found) > 1 else 0.0
    return fmean(found), half


def least_fair_share(
    reports: Sequence[CaseReport], output_tokens: Mapping[str, float]
) -> float | None:
    """Of a model: output tokens that came over those asked for, over the same of all models.

    Tokens, because requests still on their way at the end would count against slow models. The
    least over the models with 200 requests or more in all seeds together; None where none has so
    many. 1 is fair: everyone gets the same part of what they ask for.
    output_tokens: mean of a request, by model.
    """
    served = {
        name: sum(each.models[name].tokens_per_s for each in reports) for name in output_tokens
    }
    counts = {name: sum(each.models[name].num_requests for each in reports) for name in served}
    asked = {
        name: mean * sum(each.models[name].offered_per_s for each in reports)
        for name, mean in output_tokens.items()
    }
    overall = sum(served.values()) / sum(asked.values())
    shares = [served[name] / asked[name] / overall for name in served if counts[name] >= _ENOUGH]
    return round(min(shares), 4) if shares else None
