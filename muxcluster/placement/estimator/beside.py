"""Steady state of a unit whose prompts have jobs of their own: beside decodes, or before them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from muxcluster.placement.estimator.queueing import FULLEST, Flow, Part, queue_wait, rest_of
from muxcluster.placement.estimator.shares import Loads, Tenant
from muxcluster.placement.problem import LENGTH_CV2

_ROUNDS = 12
_CLOSE = 2e-3
# Measured on simulated units of two to six models (bench/plan_holds.py draws such): steps wait for
# prefills that start, and for a place that is wide enough; models that share a decode worker are
# not served evenly, as those with least slack go first.
_WAITING = 1.09
_QUEUED = 1.2
_BATCHED = 0.9  # load of the prefills above which a job has several prompts
_UNEVEN = 0.25  # standard deviation over mean of the gaps of such models


class Decode(NamedTuple):
    """One model's decodes."""

    rate: float  # requests/s that it serves
    rows: float  # mean sequences in decode
    busy: float  # probability that there are any
    step_s: float
    gap_s: float  # from step to step
    prefill_s: float  # of a mean prompt


class _Unit:
    """A unit's models at one division of its SMs. The decodes of a round follow from the last."""

    def __init__(self, tenants: Sequence[Tenant], loads: Loads) -> None:
        self.tenants = tenants
        self.split = loads.prefill_share if loads.shared else 0.0
        self.workers = loads.num_decodes
        self.rungs = loads.rungs
        share = loads.prefill_share
        self.prefills = [
            each.cost.prefill_job_s(share) + each.cost.turn_s(1, 1) for each in tenants
        ]
        self.full_prefills = [each.cost.prefill(share)[0] for each in tenants]
        self.prefill_draw = max(each.cost.prefill(share)[1] for each in tenants)

    def next_round(self, rates: Sequence[float], before: Sequence[Decode]) -> list[Decode]:
        prefill = self.prefill_load(before)
        works = [
            each.cost.step_s(max(1.0, old.rows), 1.0)
            for each, old in zip(self.tenants, before, strict=True)
        ]
        steps = [self._step_s(index, before, works, prefill) for index in range(len(before))]
        others = sum(old.busy * step for old, step in zip(before, steps, strict=True))
        found: list[Decode] = []
        for tenant, rate, old, step in zip(self.tenants, rates, before, steps, strict=True):
            gap = self._gap_s(old, step, others, prefill)
            output = tenant.cost.demand.output_tokens
            served = min(rate, tenant.rows / (output * gap)) / max(1.0, prefill / FULLEST)
            rows = served * output * gap
            busy = max(1e-12, -math.expm1(-rows))
            found.append(Decode(served, rows, busy, step, gap, self._prefill_s(len(found), before)))
        return found

    def _gap_s(self, old: Decode, step_s: float, others_s: float, prefill: float) -> float:
        """others_s: steps of all models, each as often as it has one."""
        gap_s = others_s + (1 - old.busy) * step_s
        if not self.split:
            return gap_s / (1 - min(FULLEST, prefill))
        queued = _QUEUED if len(self.tenants) > self.workers else 1.0
        return max(step_s, queued * gap_s / self.workers)

    def prefill_load(self, before: Sequence[Decode]) -> float:
        """Load of the one prefill at a time; jobs of several prompts, where these queue up."""
        single = sum(old.rate * old.prefill_s for old in before)
        full = sum(
            old.rate * old.prefill_s * full / alone
            for old, alone, full in zip(before, self.prefills, self.full_prefills, strict=True)
        )
        return single if single <= _BATCHED else min(single, max(full, _BATCHED))

    def _prefill_s(self, index: int, before: Sequence[Decode]) -> float:
        alone = self.prefills[index]
        if not self.split:
            return alone
        cost = self.tenants[index].cost
        draws = [
            old.busy * each.cost.decode(each.batch, self.rungs[0])[1]
            for each, old in zip(self.tenants, before, strict=True)
        ]
        return alone * cost.slowdown((self.prefill_draw, max(draws)))

    def _step_s(
        self, index: int, before: Sequence[Decode], works: Sequence[float], prefill: float
    ) -> float:
        tenant, rows = self.tenants[index], max(1.0, before[index].rows)
        if not self.split:
            return tenant.cost.step_s(rows, 1.0) + tenant.cost.turn_s(rows, 0)
        # probability that another model decodes at the same time
        places = min(1.0, (self.workers - 1) / max(1, len(before) - 1))
        beside = [0.0 if i == index else old.busy * places for i, old in enumerate(before)]
        company = sum(part * work for part, work in zip(beside, works, strict=True))
        part = works[index] / (works[index] + company)
        prefill = min(1.0, prefill)
        alone_s = tenant.cost.step_s(rows, self._rung(part))
        amid_s = self._amid_s(tenant, rows, part)
        slower = self._slower(tenant, part, beside, prefill)
        step_s = _WAITING * ((1 - prefill) * alone_s + prefill * amid_s) * slower
        return step_s + tenant.cost.turn_s(rows, 0)

    def _amid_s(self, tenant: Tenant, rows: float, part: float) -> float:
        """Seconds of a step on its part of the SMs that a prefill leaves; where no rung is as
        narrow, steps take turns."""
        share = part * (1 - self.split)
        rung = min(self._rung(share), max(self.rungs[0], 1 - self.split))
        return tenant.cost.step_s(rows, rung) * max(1.0, min(2.0, rung / share))

    def _slower(
        self, tenant: Tenant, part: float, beside: Sequence[float], prefill: float
    ) -> float:
        """Return the factor by which neighbours slow a step down."""
        cost = tenant.cost
        draw = cost.decode(tenant.batch, self._rung(part))[1]
        rest = self._rung(1 - part)
        by_decodes = max(
            chance * (cost.slowdown((draw, other.cost.decode(other.batch, rest)[1])) - 1)
            for other, chance in zip(self.tenants, beside, strict=True)
        )
        by_prefill = cost.slowdown((draw, self.prefill_draw)) - 1
        return 1 + (1 - prefill) * by_decodes + prefill * max(by_decodes, by_prefill)

    def _rung(self, share: float) -> float:
        return min(self.rungs, key=lambda rung: (round(abs(rung - share), 6), -rung))


def steady(
    tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]
) -> tuple[list[Decode], _Unit]:
    """Return the steady state at these rates; requests that cannot be served stay outside.

    Sequences in decode by Little's law, as in `turns`; a step's SMs are its part by work of those
    that a prefill leaves, for as long as one runs. `AdbsLane` chooses by predicted progress, with
    much the same result (bench/plan_holds.py).
    """
    unit = _Unit(tenants, loads)
    found = [
        Decode(rate, 0.0, 0.0, 0.0, 0.0, alone)
        for rate, alone in zip(rates, unit.prefills, strict=True)
    ]
    for _ in range(_ROUNDS):
        before = found
        found = unit.next_round(rates, before)
        if all(
            abs(new.rows - old.rows) <= _CLOSE * (1 + new.rows)
            for new, old in zip(found, before, strict=True)
        ):
            break
    return found, unit


def gain_over_mixed(tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]) -> float:
    """Return how much faster jobs side by side are than mixed jobs with the same prompts and rows.

    That is what `scheduling.lanes.unsharing.SharingJudge` measures; below 1 a unit unshares.
    loads: of jobs side by side.
    """
    found, unit = steady(tenants, loads, rates)
    mixed_s, idle = 0.0, 1 - min(1.0, unit.prefill_load(found))  # seconds of a second
    for tenant, each in zip(tenants, found, strict=True):
        cost = tenant.cost
        step_s, prompt_s = cost.step_s(max(1.0, each.rows), 1.0), cost.prefill_job_s(1.0)
        joined_s = cost.mixed_job_s(step_s, prompt_s) - step_s
        mixed_s += each.busy / each.gap_s * step_s + each.rate * joined_s
        idle *= 1 - each.busy
    return mixed_s / (1 - idle)


def in_own_jobs(
    tenants: Sequence[Tenant], loads: Loads, rates: Sequence[float]
) -> tuple[Flow, ...]:
    """Return the flows of that steady state; prompts wait as in an M/G/1 queue."""
    found, unit = steady(tenants, loads, rates)
    prefill = unit.prefill_load(found)
    total = sum(each.rate for each in found)
    mean = sum(each.rate * each.prefill_s for each in found) / total if total else 0.0
    wait = queue_wait(prefill, mean) if mean else Part(0.0)
    return tuple(
        _flow(tenant, each, unit, prefill, wait)
        for tenant, each in zip(tenants, found, strict=True)
    )


def _flow(tenant: Tenant, found: Decode, unit: _Unit, prefill: float, wait: Part) -> Flow:
    output = tenant.cost.demand.output_tokens
    rows, more = max(1.0, found.rows), 1.25 * max(1.0, found.rows)
    stretch = found.gap_s / tenant.cost.step_s(rows, 1.0)
    slope = (
        stretch * (tenant.cost.step_s(more, 1.0) - tenant.cost.step_s(rows, 1.0)) / (more - rows)
    )
    rho = min(FULLEST, slope * found.rate * output)
    by_rows = slope**2 * found.rows / (1 - rho)
    # a prefill that runs makes a step longer, or stands before it; it averages out over a request
    by_prompts = prefill * found.prefill_s**2 * (1 + LENGTH_CV2) if not unit.split else 0.0
    is_queued = unit.split > 0 and len(unit.tenants) > unit.workers
    uneven = (_UNEVEN * found.gap_s) ** 2 if is_queued else 0.0
    per_token = min(1.0, (1 + LENGTH_CV2) / output)
    job = Part(found.prefill_s, found.prefill_s**2 * LENGTH_CV2)
    longest = found.gap_s + slope * max(0.0, tenant.rows - found.rows)
    return Flow(
        rate=found.rate,
        rows=found.rows,
        variance=found.rows + (found.rows / found.gap_s) ** 2 * by_rows / max(rho, 0.05),
        full_rate=tenant.rows / (output * longest),
        gap=Part(found.gap_s, by_rows + by_prompts * per_token + uneven),
        first=rest_of(found.step_s, by_rows, busy=found.busy * (1 - min(1.0, prefill)))
        + wait
        + job,
    )
