"""Batch work of a plan: what each unit does of it, its density, and what it costs others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.estimator import (
    Backlogged,
    BatchWork,
    Estimator,
    Tenant,
    UnitEstimate,
    equal_units,
    node_of,
    offers_of,
)
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Problem

_ALMOST = 0.97  # of the capacity: at all of it queues grow without bound


@dataclass(frozen=True, slots=True)
class BatchModel:
    """One model of a unit with batch work."""

    name: str
    asked: float  # asked, done: prompt and output tokens/s of its batch work
    done: float
    # tpot_s, tpot_beside_s: predicted 95th percentiles of its interactive requests, without batch
    # work and while the unit does as much of it as it can
    tpot_s: float
    tpot_beside_s: float
    target_s: float | None  # of them, None without one
    is_asked: bool  # False: it has no batch work of its own, other models of its unit do


@dataclass(frozen=True, slots=True)
class BatchUnit:
    """A unit with batch work."""

    id: str
    capacity: float  # multiple of all batch work asked of it which it could do
    # compute over memory seconds (BlendServe §4) of what it runs, without and with its batch work;
    # near 1 it uses both
    density_without: float
    density: float
    models: tuple[BatchModel, ...]


def batch_units(problem: Problem, plan: Plan) -> tuple[BatchUnit, ...]:
    """Return a report of each unit of which batch work is asked, in the order of the plan.

    Raises ValueError as `assess`.
    """
    if not problem.backlog_tokens_per_s:
        return ()
    estimator = Estimator(problem)
    found = (_report(estimator, plan, unit) for unit in plan.units)
    return tuple(report for report in found if report is not None)


def _report(estimator: Estimator, plan: Plan, unit: PlannedUnit) -> BatchUnit | None:
    gpu = node_of(estimator.problem, unit).gpu
    offers = tuple(sorted(offers_of(estimator.problem, plan, unit)))
    found = estimator.unit(gpu, unit.tp, offers, len(equal_units(plan, unit)))
    if found is None:
        raise ValueError(f"unit {unit.id}: {estimator.refusal(gpu, unit.tp, offers)}")
    backlogged = estimator.backlogged(found, gpu, offers)
    if backlogged is None:
        return None
    return BatchUnit(
        unit.id,
        backlogged.capacity(),
        _density(found, gpu, [None] * len(offers), []),
        _density(found, gpu, backlogged.works, _done(found)),
        _models(found, backlogged),
    )


def _models(found: UnitEstimate, backlogged: Backlogged) -> tuple[BatchModel, ...]:
    beside = backlogged.latencies(_ALMOST * backlogged.capacity())
    asked, done = (0.0,) * len(beside), _done(found)
    if found.backlog is not None:
        asked = found.backlog.asked
    return tuple(
        BatchModel(
            name=tenant.cost.demand.name,
            asked=asked[index],
            done=done[index],
            tpot_s=late.tpot_s.high,
            tpot_beside_s=max(late.tpot_s.high, beside[index].tpot_s.high),
            target_s=tenant.cost.demand.tpot_s,
            is_asked=backlogged.works[index] is not None,
        )
        for index, (tenant, late) in enumerate(zip(found.tenants, found.latencies(), strict=True))
    )


def _done(found: UnitEstimate) -> Sequence[float]:
    return [0.0] * len(found.tenants) if found.backlog is None else found.backlog.done


def _density(
    found: UnitEstimate, gpu: Gpu, works: Sequence[BatchWork | None], done: Sequence[float]
) -> float:
    """Return compute over memory seconds of all requests a second; done: batch tokens/s."""
    seconds = np.zeros(2)
    for index, (tenant, share) in enumerate(zip(found.tenants, found.served, strict=True)):
        seconds += tenant.rate * share * _seconds(tenant, tenant.cost.demand, gpu)
        work = works[index]
        if work is not None:
            asked = work.cost.demand
            rate = done[index] / (asked.prompt_tokens + asked.output_tokens)
            seconds += rate * _seconds(tenant, asked, gpu)
    compute_s, memory_s = seconds.tolist()
    return float(compute_s / memory_s)


def _seconds(tenant: Tenant, lengths: Demand, gpu: Gpu) -> np.ndarray:
    """Return float64 [2] compute and memory seconds of a mean request."""
    resources = resource_model(lengths.shape, gpu, tenant.cost.tp, lengths.itemsize)
    prompt, output = np.array(lengths.prompt_tokens), np.array(lengths.output_tokens)
    compute = resources.prefill_s(np.zeros(()), prompt) + resources.decode_s(output)
    return np.array((compute, resources.read_s(prompt, output, output**2)))
