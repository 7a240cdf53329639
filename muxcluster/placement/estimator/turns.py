"""Steady state of a unit that runs one mixed job at a time, its models in turn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muxcluster.placement.estimator.queueing import FULLEST, Flow, Part, queue_wait, rest_of
from muxcluster.placement.estimator.shares import Tenant
from muxcluster.placement.problem import LENGTH_CUBE, LENGTH_CV2

_ROUNDS = 8
_CLOSE = 3e-3
_MOST_LEAP = 8.0
_SURE = 20.0  # mean rows above which a model has work at any time


class Turn(NamedTuple):
    """One model's part of a cycle, in which every model that has work gets one job."""

    rate: float  # requests/s that it serves
    rows: float  # mean sequences in decode
    busy: float  # probability that it has work
    prompts: float  # mean prompts that come to one of its jobs
    job_s: float  # its job
    decode_s: float  # of it the decodes
    cycle_s: float  # from job to job, while it has work


def steady(tenants: Sequence[Tenant], rates: Sequence[float]) -> list[Turn]:
    """Return the steady state at these rates; requests that cannot be served stay outside.

    While a cycle of C seconds lasts, rate x C prompts of a model come in, and rate x output x C
    sequences decode (Little's law: each gets a token a cycle). Jobs grow with both, and the cycle
    is the sum of the jobs: C is the least solution of that, found by iteration with Aitken's leaps.
    """
    turns = [_first(tenant, rate) for tenant, rate in zip(tenants, rates, strict=True)]
    whole = _whole(turns)
    for _ in range(_ROUNDS):
        before = whole
        turns = _round(tenants, rates, turns, 1.0)
        middle = _whole(turns)
        turns = _round(tenants, rates, turns, 1.0)
        whole = _whole(turns)
        if abs(whole - middle) <= _CLOSE * whole:
            break
        turns = _round(tenants, rates, turns, _leap(before, middle, whole))
        whole = _whole(turns)
    return turns


def in_mixed_jobs(tenants: Sequence[Tenant], rates: Sequence[float]) -> tuple[Flow, ...]:
    """Return the flows of that steady state."""
    turns = steady(tenants, rates)
    whole = _whole(turns)
    prefill = sum(turn.busy * (turn.job_s - turn.decode_s) for turn in turns)
    left = 1 - min(FULLEST, prefill / whole)
    slopes = [_row_s(tenant, turn) / left for tenant, turn in zip(tenants, turns, strict=True)]
    prompts = [_prompt_s(tenant, turn) for tenant, turn in zip(tenants, turns, strict=True)]
    rho = sum(
        slope * turn.rate * tenant.cost.demand.output_tokens
        for slope, turn, tenant in zip(slopes, turns, tenants, strict=True)
    )
    rho = min(FULLEST, rho)
    by_rows = sum(slope**2 * turn.rows for slope, turn in zip(slopes, turns, strict=True))
    come = [(each, turn.busy * turn.prompts) for each, turn in zip(prompts, turns, strict=True)]
    scatter = _Scatter(
        rho,
        by_rows / (1 - rho),
        sum(each**2 * number for each, number in come) * (1 + LENGTH_CV2),
        sum(each**3 * number for each, number in come) * LENGTH_CUBE,
        left,
    )
    return tuple(
        _flow(tenant, turn, slope, scatter)
        for tenant, turn, slope in zip(tenants, turns, slopes, strict=True)
    )


def _whole(turns: Sequence[Turn]) -> float:
    return sum(turn.busy * turn.job_s for turn in turns)


def _leap(first: float, second: float, third: float) -> float:
    """Return the factor to the limit of a geometric series."""
    growth = second - first
    ratio = (third - second) / growth if growth else 0.0
    if ratio >= 1:
        return _MOST_LEAP
    limit = second + (third - second) / (1 - ratio)
    return min(_MOST_LEAP, max(1 / _MOST_LEAP, limit / third))


def _first(tenant: Tenant, rate: float) -> Turn:
    decode_s = tenant.cost.step_s(1, 1.0)
    rows = min(1.0, rate * tenant.cost.demand.output_tokens * decode_s)
    return Turn(rate, rows, rows, 0.0, decode_s, decode_s, decode_s)


def _round(
    tenants: Sequence[Tenant], rates: Sequence[float], turns: Sequence[Turn], stretch: float
) -> list[Turn]:
    whole = _whole(turns)
    return [
        _turn(tenant, rate, stretch * (whole + (1 - turn.busy) * turn.job_s))
        for tenant, rate, turn in zip(tenants, rates, turns, strict=True)
    ]


def _turn(tenant: Tenant, rate: float, cycle_s: float) -> Turn:
    """Return the model's turn if a job of it comes every `cycle_s` while it has work."""
    cost = tenant.cost
    demand = cost.demand
    output_s, prompt_tokens = demand.output_tokens * cycle_s, demand.prompt_tokens
    most = tenant.rows / output_s
    served = most if most < rate else rate
    budget = cost.token_budget - served * output_s
    if served * prompt_tokens * cycle_s > budget:
        served = max(1.0, budget) / (prompt_tokens * cycle_s)
    rows = served * output_s
    busy = 1.0 if rows > _SURE else max(1e-12, -math.expm1(-(rows + served * cycle_s)))
    decoding, prompts = rows / busy, served * cycle_s / busy
    decode_s = cost.step_s(decoding, 1.0) if decoding > 1 else cost.step_s(1, 1.0) * decoding
    # share of the jobs with prompts: Poisson arrivals, and prompts longer than the budget
    some = -math.expm1(-prompts)
    if prompts * prompt_tokens > some * budget:
        some = min(1.0, prompts * prompt_tokens / max(1.0, budget))
    prefill_s = cost.prefill_job_s(1.0, prompts / some) if some > 0 else 0.0
    job_s = decode_s + some * (cost.mixed_job_s(decode_s, prefill_s) - decode_s)
    job_s += cost.turn_s(decoding + prompts, prompts)
    return Turn(served, rows, busy, prompts, job_s, decode_s, cycle_s)


def _row_s(tenant: Tenant, turn: Turn) -> float:
    """Seconds by which one more row makes a decode longer."""
    rows = max(1.0, turn.rows)
    more = 1.25 * rows
    return (tenant.cost.step_s(more, 1.0) - tenant.cost.step_s(rows, 1.0)) / (more - rows)


def _prompt_s(tenant: Tenant, turn: Turn, prompts: float = 1.0) -> float:
    """Seconds by which prompts make a job longer."""
    cost = tenant.cost
    return cost.mixed_job_s(turn.decode_s, cost.prefill_job_s(1.0, prompts)) - turn.decode_s


@dataclass(frozen=True, slots=True)
class _Scatter:
    """How the cycle varies."""

    rho: float  # part of it that grows with the rows
    by_rows: float  # by_rows, by_prompts: its variances
    by_prompts: float
    cubes: float  # third moment of the prompts in it
    left: float  # part of it without prompts


def _flow(tenant: Tenant, turn: Turn, slope: float, scatter: _Scatter) -> Flow:
    demand, cycle = tenant.cost.demand, turn.cycle_s
    # The mean of a request's gaps keeps the scatter of rows, which change slowly. That of prompts
    # averages out over its tokens (E[1 / tokens] of log-normal lengths), but while prompts are
    # computed, others come: a delay busy period (Kleinrock vol. 1, §5.10).
    per_token = min(1.0, (1 + LENGTH_CV2) / demand.output_tokens) / scatter.left**2
    own = _prompt_s(tenant, turn)
    budget = max(1.0, tenant.cost.token_budget - turn.rows)
    in_jobs = demand.prompt_tokens / budget
    job = Part(
        turn.decode_s + _prompt_s(tenant, turn, 1 + turn.prompts),
        own**2 * (LENGTH_CV2 + turn.prompts * (1 + LENGTH_CV2)),
    )
    varied = scatter.by_rows + scatter.by_prompts
    first = rest_of(cycle, varied, scatter.cubes, turn.busy) + job
    first += queue_wait(turn.rate * in_jobs * cycle, in_jobs * cycle)
    longest = cycle + slope * max(0.0, tenant.rows - turn.rows)  # with all rows taken
    common = (turn.rows / cycle) ** 2 * scatter.by_rows / max(scatter.rho, 0.05)
    return Flow(
        rate=turn.rate,
        rows=turn.rows,
        variance=turn.rows + common,
        full_rate=tenant.rows / (demand.output_tokens * longest),
        gap=Part(cycle, scatter.by_rows + scatter.by_prompts * per_token),
        first=first,
    )
