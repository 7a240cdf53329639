"""Check of a plan: what a simulation of it serves beside what it predicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.request import ServiceClass
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Demand, Problem
from muxcluster.sim.core.planned import units_of
from muxcluster.sim.core.simulate import simulate
from muxcluster.sim.demand.loads import poisson_load
from muxcluster.workload.metrics.records import Records
from muxcluster.workload.metrics.window import Window, arrived, throughput, tpot_s, ttft_s

# Requests of all models that a window holds, if that takes between the least and the most seconds:
# the sum of so many lengths deviates by 5 %.
_WINDOW_REQUESTS = 500
_LEAST_S, _MOST_S = 30.0, 240.0
# Before the window, units fill up for the time that the longest mean output takes 2.5 times, at a
# step that is rather long.
_FILLS, _STEP_S = 2.5, 0.06
_DRAIN_S = 60.0
SIGMA = 0.9  # deviation of the logarithm of lengths, between those of ShareGPT and Azure's traces


@dataclass(frozen=True, slots=True)
class Span:
    """Requests come until the end of the window; those in it are followed until `drain_s` later."""

    warmup_s: float
    window_s: float
    drain_s: float

    @property
    def window(self) -> Window:
        return Window(self.warmup_s, self.warmup_s + self.window_s)

    @property
    def end_s(self) -> float:
        return self.warmup_s + self.window_s + self.drain_s


@dataclass(frozen=True, slots=True)
class Observed:
    """Simulated requests of one model, or of all, that arrived in the window."""

    num_requests: int
    served_per_s: float  # requests/s that ended in the window, whenever they came
    ended: float  # share of the requests that ended in the window or the drain
    within: float  # share that ended within both targets
    # (median, 95th percentile) in seconds over those that got tokens; NaN without any
    ttft_s: tuple[float, float]
    tpot_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Check:
    """Simulation of one plan."""

    span: Span
    total: Observed  # total, models: of interactive requests
    models: dict[str, Observed]
    batch: dict[str, float]  # prompt and output tokens/s of batch requests, by model with any asked


def span_of(problem: Problem) -> Span:
    """Return a span with so many requests that their lengths average out."""
    rate = sum(demand.rate for demand in problem.demands)
    longest = max(demand.output_tokens for demand in problem.demands)
    warmup_s = min(_DRAIN_S, max(_LEAST_S / 2, _FILLS * longest * _STEP_S))
    window_s = min(_MOST_S, max(_LEAST_S, _WINDOW_REQUESTS / rate))
    return Span(warmup_s, window_s, _DRAIN_S)


def check_plan(
    problem: Problem, plan: Plan, span: Span, *, sigma: float = SIGMA, seed: int = 0
) -> Check:
    """Simulate the plan under Poisson arrivals at the problem's rates, lengths log-normal.

    Batch requests come beside them at the rate that is asked; what is not done of them waits.
    sigma: deviation of their logarithm. Raises what `units_of` does.
    """
    load = poisson_load(problem.demands, sigma)
    arrivals = load.arrivals(seed, span.window.end_s)
    found = simulate(units_of(plan, problem), arrivals, until_s=span.end_s).records
    interactive = found.of_class(ServiceClass.INTERACTIVE)
    models = {
        demand.name: _observed(interactive.of_model(demand.name), [demand], span)
        for demand in problem.demands
    }
    batch = {
        demand.name: _tokens_per_s(found, demand.name, span)
        for demand in problem.demands
        if demand.backlog is not None
    }
    return Check(span, _observed(interactive, problem.demands, span), models, batch)


def _tokens_per_s(records: Records, model: str, span: Span) -> float:
    """Return batch tokens/s inside the window: prompts when they are computed, outputs as they
    come."""
    found = throughput(records.of_class(ServiceClass.BATCH).of_model(model), span.window)
    return found.prompt_tokens_per_s + found.output_tokens_per_s


def _observed(records: Records, demands: Sequence[Demand], span: Span) -> Observed:
    """demands: of the models of `records`."""
    asked = arrived(records, span.window)
    is_done = asked.is_finished
    ended_in = records.is_finished & span.window.holds(records.rows["last_token_s"])
    return Observed(
        num_requests=len(asked),
        served_per_s=float(np.count_nonzero(ended_in)) / span.window_s,
        ended=_share(is_done),
        within=_share(is_done & _meets(asked, demands)),
        ttft_s=_quantiles(ttft_s(asked)),
        tpot_s=_quantiles(tpot_s(asked)),
    )


def _meets(records: Records, demands: Sequence[Demand]) -> NDArray[np.bool_]:
    ttft, tpot = np.full(len(records), np.inf), np.full(len(records), np.inf)
    by_name = {demand.name: demand for demand in demands}
    for index, name in enumerate(records.models):
        demand = by_name.get(name)
        if demand is None:
            continue
        is_its = records.rows["model"] == index
        ttft[is_its] = math.inf if demand.ttft_s is None else demand.ttft_s
        tpot[is_its] = math.inf if demand.tpot_s is None else demand.tpot_s
    gaps = np.nan_to_num(tpot_s(records), nan=0.0)  # a single token has no gap
    return np.asarray((ttft_s(records) <= ttft) & (gaps <= tpot))


def _share(holds: NDArray[np.bool_]) -> float:
    return float(np.mean(holds)) if len(holds) else 1.0


def _quantiles(values: NDArray[np.float64]) -> tuple[float, float]:
    found = values[~np.isnan(values)]
    if not len(found):
        return math.nan, math.nan
    median, high = np.percentile(found, (50, 95))
    return float(median), float(high)
