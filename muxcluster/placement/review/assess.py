"""Assessment of a plan's units: load, bottleneck, memory, latencies and margins."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.residency import Residency
from muxcluster.placement.estimator import (
    Estimator,
    Latency,
    Quantiles,
    Tenant,
    UnitEstimate,
    equal_units,
    node_of,
    offers_of,
)
from muxcluster.placement.memory import block_bytes, weight_bytes
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Problem

_CLEARLY = 1.25  # times as many tokens/s, from which on the batch counts as the limit


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model on one unit."""

    name: str
    offered: float  # offered, served: requests/s
    served: float
    share: float  # served / offered, the paper's normalised R
    batch: float  # mean sequences in decode
    max_batch: int  # most sequences that its quota holds
    quota_blocks: int
    prefill_share: float
    decode_share: float
    ttft_s: Quantiles  # ttft_s, tpot_s: predicted
    tpot_s: Quantiles
    # ttft_margin, tpot_margin: target / predicted 95th percentile - 1, None without a target
    ttft_margin: float | None
    tpot_margin: float | None
    # Where not all of the unit's models are resident at once: wakes_per_h, wake_s and the part of
    # ttft_s until it is resident
    residency: Residency = Residency.ALWAYS
    wakes_per_h: float = 0.0
    wake_s: float = 0.0
    waking_s: Quantiles = Quantiles(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class UnitReport:
    """One unit.

    Bytes are over all GPUs of the mesh.
    """

    id: str
    node: str
    gpu: str
    tp: int
    load: float  # of its fullest resource if all offered requests were served, 1 = full
    limit: str  # that resource if not all is served, else ""
    shared: bool  # whether prefill and decode run side by side
    # prefill, sms, bandwidth: load of the prefill lane, the SMs' time and the memory bandwidth at
    # the served rates
    prefill: float
    sms: float
    bandwidth: float
    weight_bytes: int  # most that are resident at once
    kv_bytes: int
    memory_bytes: int
    models: tuple[ModelReport, ...]
    # num_at_once: of the models that may be parked, so many are resident at once, None: all;
    # parked_bytes: their weights in host memory
    num_at_once: int | None = None
    parked_bytes: int = 0
    # Ids of other units with the same models: a request goes to the one that has the weights
    equal_units: tuple[str, ...] = ()

    @property
    def free_bytes(self) -> int:
        """Bytes left by weights and KV for activations, tables and contexts."""
        return self.memory_bytes - self.weight_bytes - self.kv_bytes


def assess(problem: Problem, plan: Plan) -> tuple[UnitReport, ...]:
    """Return a report of each unit, in the order of the plan.

    The rate of a model with replicas is split in proportion to the plan's throughputs. Raises
    ValueError for a model, node or kind of mesh that the problem does not have, or that cannot hold
    its models.
    """
    estimator = Estimator(problem)
    return tuple(_report(estimator, unit, plan) for unit in plan.units)


def _report(estimator: Estimator, unit: PlannedUnit, plan: Plan) -> UnitReport:
    problem = estimator.problem
    node = node_of(problem, unit)
    offers = offers_of(problem, plan, unit)
    equal = equal_units(plan, unit)
    found = estimator.unit(node.gpu, unit.tp, offers, len(equal))
    if found is None:
        raise ValueError(f"unit {unit.id}: {estimator.refusal(node.gpu, unit.tp, offers)}")
    demands = [each.cost.demand for each in found.tenants]
    movable = [each for each in demands if each.may_park]
    loads, weight_memory = found.loads, found.weight_memory
    num_at_once = None if weight_memory is None else weight_memory.num_at_once
    weights = sorted((weight_bytes(each, unit.tp) for each in movable), reverse=True)
    always = sum(weight_bytes(each, unit.tp) for each in demands if not each.may_park)
    return UnitReport(
        id=unit.id,
        node=unit.node,
        gpu=node.gpu.name,
        tp=unit.tp,
        load=found.load,
        limit=_limit(found),
        shared=loads.shared,
        prefill=_used(found, loads.prefill),
        sms=_used(found, loads.sms),
        bandwidth=_used(found, loads.bandwidth),
        weight_bytes=always + sum(weights[:num_at_once]),
        kv_bytes=found.kv_blocks * block_bytes(demands, problem.limits),
        memory_bytes=unit.tp * node.gpu.memory_bytes,
        models=_models(found),
        num_at_once=num_at_once,
        parked_bytes=0 if weight_memory is None else sum(weights),
        equal_units=tuple(each.id for each in equal if each.id != unit.id),
    )


def _used(found: UnitEstimate, part: Sequence[float]) -> float:
    return sum(load * share for load, share in zip(part, found.served, strict=True))


def _limit(found: UnitEstimate) -> str:
    if min(found.served) >= 1 - 1e-9:
        return ""
    return fullest(found) if found.load > 1 else "latency target"


def fullest(found: UnitEstimate) -> str:
    """Name the resource that the offered rates fill most.

    Where larger batches would serve clearly more, that is what limits the batch of the model that
    is served least: its rows or its KV.
    """
    least = min(range(len(found.served)), key=found.served.__getitem__)
    tenant = found.tenants[least]
    if found.served[least] < 1 - 1e-9 and _gains_by_rows(tenant, found.loads.decode_shares[least]):
        return f"{_rows_text(tenant, found.quotas[least])} of {tenant.cost.demand.name}"
    resources = {name: sum(part) for name, part in found.loads.resources.items()}
    for tenant, lane in zip(found.tenants, found.loads.lanes, strict=True):
        resources[f"decode lane of {tenant.cost.demand.name}"] = lane
    return max(resources, key=lambda name: resources[name])


def _gains_by_rows(tenant: Tenant, share: float) -> bool:
    """Return whether twice the rows would decode more tokens/s."""
    now = tenant.cost.step_s(tenant.batch, share)
    return tenant.cost.step_s(2 * tenant.batch, share) < 2 * now / _CLEARLY


def _rows_text(tenant: Tenant, quota: int) -> str:
    cost = tenant.cost
    if quota // cost.sequence_blocks < cost.max_rows:
        return f"KV for {quota // cost.sequence_blocks} sequences"
    by_seqs = cost.max_rows == cost.demand.max_seqs
    return f"{cost.max_rows} rows ({'max_seqs' if by_seqs else 'max_decode_rows'})"


def _models(found: UnitEstimate) -> tuple[ModelReport, ...]:
    return tuple(_model(found, position, late) for position, late in enumerate(found.latencies()))


def _model(found: UnitEstimate, position: int, late: Latency) -> ModelReport:
    tenant, share = found.tenants[position], found.served[position]
    demand: Demand = tenant.cost.demand
    residency = Residency.ALWAYS if found.weight_memory is None else demand.residency
    return ModelReport(
        name=demand.name,
        offered=tenant.rate,
        served=tenant.rate * share,
        share=share,
        batch=late.batch,
        max_batch=int(tenant.rows),
        quota_blocks=found.quotas[position],
        prefill_share=found.loads.prefill_share,
        decode_share=found.loads.decode_shares[position],
        ttft_s=late.ttft_s,
        tpot_s=late.tpot_s,
        ttft_margin=_margin(demand.ttft_s, late.ttft_s.high),
        tpot_margin=_margin(demand.tpot_s, late.tpot_s.high),
        residency=residency,
        wakes_per_h=3600 * found.wakes_per_s()[position],
        wake_s=found.wake_s()[position],
        waking_s=late.waking_s,
    )


def _margin(target_s: float | None, predicted_s: float) -> float | None:
    return None if target_s is None else target_s / predicted_s - 1
