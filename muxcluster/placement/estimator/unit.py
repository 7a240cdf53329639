"""The estimate of one unit: what a mesh serves of the rates offered to it (MuxServe Eq. 1-3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.placement.cost import Cost, cost_for
from muxcluster.placement.estimator.at_once import (
    least_at_once,
    resident_cost_bytes,
    rooms,
    weight_memory_of,
)
from muxcluster.placement.estimator.backlog import BacklogEstimate, Backlogged, BatchWork
from muxcluster.placement.estimator.latency import (
    Latency,
    in_time,
    latencies,
    served_rates,
    spans,
)
from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.shares import Loads, Tenant, expected, tenants_of, within_loads
from muxcluster.placement.estimator.weight_memory import WeightMemory
from muxcluster.placement.execution import CannotRun, Execution, executions, planned
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import (
    DoesNotFit,
    block_bytes,
    check_parked,
    kv_blocks,
    least_missing,
    recording_bytes,
    usable_bytes,
)
from muxcluster.placement.plan import PlannedExecution
from muxcluster.placement.problem import Problem

# (index of a demand of the problem, requests/s offered to a unit)
Offer = tuple[int, float]
_BISECTIONS = 6
_SAME = 1e-9  # relative difference of values that are equal
_LEAST_SERVED = 1e-3
_MUCH_LESS = 0.5  # part of the pressure for which more models wait for weights
_IDLE = 1e-6  # part of the rates at which a unit counts as idle


@dataclass(frozen=True, slots=True)
class UnitEstimate:
    """Estimate of a mesh with models on it."""

    kv_blocks: int  # kv_blocks, quotas: the pool and its initial division
    tenants: tuple[Tenant, ...]
    quotas: tuple[int, ...]
    execution: Execution  # how it runs its jobs
    loads: Loads
    served: tuple[float, ...]  # by model, fraction of the rate offered
    value: float  # part of the objective, additive over units
    load: float  # of its fullest resource if all that is offered were served; above 1 it is not
    backlog: BacklogEstimate | None = None  # its batch work, None if none is asked
    # Units with the same models and rates, this one included: a request goes to the one that has
    # its model's weights. Served rates, value and loads are those of one
    num_units: int = 1

    @property
    def whole_load(self) -> float:
        """Load with batch work."""
        return self.load if self.backlog is None else self.backlog.load

    @property
    def pressure(self) -> float:
        """The load, or the part of a target that first tokens take where they wait for weights."""
        if self.weight_memory is None:
            return self.load
        late = zip(self.tenants, self.latencies(), strict=True)
        parts = (
            each.ttft_s.high / (tenant.cost.demand.ttft_s or math.inf) for tenant, each in late
        )
        return max(self.load, *parts)

    @property
    def weight_memory(self) -> WeightMemory | None:
        """The memory that models share for their weights; None if all are always resident."""
        return self.loads.weight_memory

    def wakes_per_s(self) -> tuple[float, ...]:
        """Wakes/s of each model at its served rate."""
        if self.weight_memory is None:
            return (0.0,) * len(self.tenants)
        rates = [each.rate * part for each, part in zip(self.tenants, self.served, strict=True)]
        return self.weight_memory.wakes_with_returns(rates, spans(self.tenants, self.latencies()))

    def wake_s(self) -> tuple[float, ...]:
        """Seconds of a wake of each model; 0 for one that is always resident."""
        return (
            (0.0,) * len(self.tenants) if self.weight_memory is None else self.weight_memory.wake_s
        )

    @property
    def throughput(self) -> float:
        return sum(each.rate * share for each, share in zip(self.tenants, self.served, strict=True))

    def latencies(self) -> tuple[Latency, ...]:
        """Latency of each model at its served rate."""
        return latencies(self.tenants, self.loads, self.served)


class Estimator:
    """Estimates units of one problem; every answer is memoised.

    A pure function of the problem: the same offers give the same estimate, in whatever order.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._costs: dict[tuple[Gpu, int], Cost] = {}
        self._models: dict[tuple[int, Gpu, int, int], ModelCost | DoesNotFit] = {}
        # of batch requests, as `_models` of interactive ones
        self._batches: dict[tuple[int, Gpu, int, int], ModelCost] = {}
        self._units: dict[tuple[Gpu, int, tuple[Offer, ...], int], UnitEstimate | None] = {}

    @property
    def num_estimates(self) -> int:
        """Distinct units estimated so far."""
        return len(self._units)

    def unit(
        self, gpu: Gpu, tp: int, offers: Sequence[Offer], num_units: int = 1
    ) -> UnitEstimate | None:
        """Return the estimate, or None if the models do not fit on the mesh together.

        offers: to this unit; at least one, each model at most once. num_units: equal ones with the
        same models and rates, this one included.
        """
        key = (gpu, tp, tuple(sorted(offers)), num_units)
        if key not in self._units:
            try:
                found = self._estimate(gpu, tp, key[2], num_units)
                self._units[key] = self._with_backlog(found, gpu, key[2])
            except DoesNotFit:
                self._units[key] = None
        return self._units[key]

    def unit_as(
        self,
        execution: PlannedExecution,
        gpu: Gpu,
        tp: int,
        offers: Sequence[Offer],
        num_units: int = 1,
    ) -> UnitEstimate | None:
        """Return the estimate of a unit that runs so; None if it cannot, or does not fit."""
        try:
            ways = executions(gpu, tp, len(offers), self.problem.policy)
            way = next((each for each in ways if planned(each) == execution), None)
            if way is None:
                return None
            ordered = tuple(sorted(offers))
            found = self._estimate_as(way, gpu, tp, ordered, num_units)
            return self._with_backlog(found, gpu, ordered)
        except (CannotRun, DoesNotFit):
            return None

    def refusal(self, gpu: Gpu, tp: int, offers: Sequence[Offer]) -> DoesNotFit | None:
        """Return the reason why `unit` returns None, else None."""
        try:
            self._estimate(gpu, tp, tuple(sorted(offers)), 1)
        except DoesNotFit as error:
            return error
        return None

    def model(self, index: int, gpu: Gpu, tp: int, bytes_per_block: int) -> ModelCost:
        """Cost of a model on a kind of mesh. Raises DoesNotFit if it cannot be split so."""
        key = (index, gpu, tp, bytes_per_block)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = self._model(index, gpu, tp, bytes_per_block)
        if isinstance(found, DoesNotFit):
            raise found
        return found

    def backlogged(
        self, found: UnitEstimate, gpu: Gpu, rates: Sequence[Offer]
    ) -> Backlogged | None:
        """Return a unit with the batch work of its models; None if none of them has any.

        rates: of the interactive requests, a model's batch work is divided among its replicas as
        they are; those of `found` may be others.
        """
        demands = [self.problem.demands[index] for index, _ in rates]
        if all(demand.backlog is None for demand in demands):
            return None
        per_block = block_bytes(demands, self.problem.limits)
        return Backlogged(
            found.tenants,
            found.served,
            [self._work(offer, gpu, found.tenants[0].cost.tp, per_block) for offer in rates],
            num_blocks=found.kv_blocks,
            execution=found.execution,
            policy=self.problem.policy,
        )

    def _with_backlog(self, found: UnitEstimate, gpu: Gpu, offers: Sequence[Offer]) -> UnitEstimate:
        backlogged = self.backlogged(found, gpu, offers)
        if backlogged is None:
            return found
        return replace(found, backlog=backlogged.estimate(found.load))

    def _work(self, offer: Offer, gpu: Gpu, tp: int, bytes_per_block: int) -> BatchWork | None:
        index, rate = offer
        demand = self.problem.demands[index]
        if demand.backlog is None:
            return None
        key = (index, gpu, tp, bytes_per_block)
        if key not in self._batches:
            asked = replace(
                demand,
                prompt_tokens=demand.backlog.prompt_tokens,
                output_tokens=demand.backlog.output_tokens,
                decode_tokens=demand.backlog.decode_tokens(demand.max_model_len),
                max_seqs=demand.num_rows,
                batch_seqs=0,
            )
            cost = self._cost_of(gpu, demand.itemsize)
            self._batches[key] = ModelCost(asked, tp, cost, self.problem, bytes_per_block)
        return BatchWork(self._batches[key], demand.backlog.rate * rate / demand.rate)

    def _cost_of(self, gpu: Gpu, itemsize: int) -> Cost:
        which = (gpu, itemsize)
        if which not in self._costs:
            self._costs[which] = cost_for(gpu, itemsize, self.problem.profiles)
        return self._costs[which]

    def _model(self, index: int, gpu: Gpu, tp: int, bytes_per_block: int) -> ModelCost | DoesNotFit:
        demand = self.problem.demands[index]
        cost = self._cost_of(gpu, demand.itemsize)
        try:
            return ModelCost(demand, tp, cost, self.problem, bytes_per_block)
        except DoesNotFit as refusal:
            return refusal

    def _estimate(
        self, gpu: Gpu, tp: int, offers: tuple[Offer, ...], num_units: int
    ) -> UnitEstimate:
        """Return the best execution's estimate; of equal ones the one with more requests within
        their targets, then with less load. One model shares SMs only where it serves more."""
        name = self.problem.demands[offers[0][0]].name
        try:
            ways = executions(gpu, tp, len(offers), self.problem.policy)
        except CannotRun as refusal:
            raise DoesNotFit(name, str(refusal)) from refusal
        found, refusals = [], []
        for way in ways:
            try:
                found.append(self._estimate_as(way, gpu, tp, offers, num_units))
            except DoesNotFit as refusal:
                refusals.append(refusal)
        if not found:
            raise least_missing(refusals)
        if len(found) == 1:
            return found[0]
        best = max(each.value for each in found)
        equal = [each for each in found if each.value >= best * (1 - _SAME)]
        if len(equal) == 1 or len(offers) == 1:
            return equal[0]
        return max(equal, key=lambda e: (_within(e), -e.load))

    def _estimate_as(
        self,
        execution: Execution,
        gpu: Gpu,
        tp: int,
        offers: tuple[Offer, ...],
        num_units: int,
    ) -> UnitEstimate:
        """Return the estimate with the most memory for weights with which all is served, or less
        where much less pressure is the gain; else that with most of the objective. What weights do
        not take is KV."""
        demands = [self.problem.demands[index] for index, _ in offers]
        per_block = block_bytes(demands, self.problem.limits)
        costs = [self.model(index, gpu, tp, per_block) for index, _ in offers]
        rates = [rate for _, rate in offers]
        found: list[UnitEstimate] = []
        short: DoesNotFit | None = None
        for room in rooms(costs, gpu, execution):
            memory = None
            if room is not None:
                try:
                    check_parked(demands, self.problem.limits, tp)
                except DoesNotFit as refusal:
                    short = refusal
                    break
                memory = weight_memory_of(costs, room, gpu, execution, num_units)
            each = self._estimate_with(memory, execution, gpu, costs, rates)
            if each is None:
                continue
            if found and found[-1].load <= 1 and each.pressure > _MUCH_LESS * found[-1].pressure:
                return found[-1]
            found.append(replace(each, num_units=num_units))
            if room is None and each.load <= 1:
                return each
        if not found:
            raise short or self._refusal(execution, gpu, costs)
        best = max(each.value for each in found)
        equal = [each for each in found if each.value >= best * (1 - _SAME)]
        return min(equal, key=lambda each: each.pressure)

    def _estimate_with(
        self,
        weight_memory: WeightMemory | None,
        execution: Execution,
        gpu: Gpu,
        costs: Sequence[ModelCost],
        rates: Sequence[float],
    ) -> UnitEstimate | None:
        """Return None where weights leave too little. weight_memory: None, if all models stay."""
        num_blocks = self._pool_blocks(weight_memory, execution, gpu, costs)
        if num_blocks is None:
            return None
        tenants, quotas = tenants_of(costs, rates, num_blocks, execution, weight_memory)
        loads = expected(tenants, execution, weight_memory)
        value, served, load = self._served(tenants, loads)
        return UnitEstimate(num_blocks, tenants, quotas, execution, loads, served, value, load)

    def _pool_blocks(
        self,
        weight_memory: WeightMemory | None,
        execution: Execution,
        gpu: Gpu,
        costs: Sequence[ModelCost],
    ) -> int | None:
        """Compute `memory.kv_blocks` from memoised parts; None where it would raise DoesNotFit."""
        limits, tp = self.problem.limits, costs[0].tp
        demands = [cost.demand for cost in costs]
        if weight_memory is None:
            taken = sum(resident_cost_bytes(cost, gpu, execution) for cost in costs)
        else:
            taken = weight_memory.resident_bytes
        pool = usable_bytes(gpu, tp, execution) - taken
        pool -= max(cost.activation_bytes for cost in costs)
        pool -= recording_bytes(gpu, tp, demands, execution)
        if limits.kv_bytes is not None:
            pool = min(pool, limits.kv_bytes)
        blocks = pool // block_bytes(demands, limits) // tp * tp
        is_short = pool < 0 or any(cost.floor_blocks > blocks for cost in costs)
        return None if is_short else blocks

    def _refusal(self, execution: Execution, gpu: Gpu, costs: Sequence[ModelCost]) -> DoesNotFit:
        """Return in words why the models do not fit, with as few at once as possible."""
        demands = [cost.demand for cost in costs]
        at_once = [cost.demand for cost in least_at_once(costs, gpu, execution)]
        try:
            kv_blocks(gpu, costs[0].tp, demands, self.problem.limits, execution, at_once)
        except DoesNotFit as refusal:
            return refusal
        raise AssertionError("the models fit")

    def _served(
        self, tenants: tuple[Tenant, ...], loads: Loads
    ) -> tuple[float, tuple[float, ...], float]:
        """(value, served fraction of each model, load)."""
        objective = self.problem.objective
        values = [each.rate * each.cost.demand.worth(objective) for each in tenants]
        found = served_rates(tenants, loads, [each.rate for each in tenants])
        served = within_loads(
            loads,
            [min(1.0, rate / each.rate) for each, rate in zip(tenants, found, strict=True)],
        )
        load = _load(loads, served)
        if objective == "goodput":
            served, values = _within_targets(tenants, loads, served, values)
            values = _with_weights_in_time(tenants, loads, served, values)
        value = sum(worth * share for worth, share in zip(values, served, strict=True))
        return value, served, load


def _load(loads: Loads, served: Sequence[float]) -> float:
    """Return the load of the fullest resource, rows among them: above 1 if not all is served."""
    least = min(served)
    if least >= 1 - _SAME:
        return min(1.0, loads.greatest)
    return max(loads.greatest, 1 / max(least, _LEAST_SERVED))


def _within(found: UnitEstimate) -> float:
    """Requests/s of models that meet their targets."""
    return sum(
        each.rate
        for each, late in zip(found.tenants, found.latencies(), strict=True)
        if _meets(each, late)
    )


def _within_targets(
    tenants: Sequence[Tenant], loads: Loads, served: tuple[float, ...], values: Sequence[float]
) -> tuple[tuple[float, ...], list[float]]:
    """Return the largest common part of `served` at which all reachable targets are met by requests
    whose model is resident, and the values: 0 for a model whose targets fail even on an otherwise
    idle unit."""
    now = latencies(tenants, loads, served)
    if all(_meets(each, late) for each, late in zip(tenants, now, strict=True)):
        return served, list(values)
    idle = latencies(tenants, loads, [_IDLE] * len(tenants))
    hopeful = [_meets(each, late) for each, late in zip(tenants, idle, strict=True)]

    def good(part: float) -> bool:
        found = latencies(tenants, loads, [part * share for share in served])
        return are_met(found)

    def are_met(found: Sequence[Latency]) -> bool:
        return all(
            _meets(each, late)
            for each, late, hope in zip(tenants, found, hopeful, strict=True)
            if hope
        )

    low, high = (1.0, 1.0) if are_met(now) else (0.0, 1.0)
    for _ in range(_BISECTIONS if low < 1 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    worth = [value if hope else 0.0 for value, hope in zip(values, hopeful, strict=True)]
    return tuple(low * share for share in served), worth


def _with_weights_in_time(
    tenants: Sequence[Tenant], loads: Loads, served: Sequence[float], values: Sequence[float]
) -> list[float]:
    """Return the values of requests that do not wait for weights for too long."""
    if loads.weight_memory is None or not any(served):
        return list(values)
    late = latencies(tenants, loads, served)
    parts = in_time(tenants, loads, served, late)
    return [value * part for value, part in zip(values, parts, strict=True)]


def _meets(tenant: Tenant, latency: Latency) -> bool:
    return latency.awake.meets(tenant.cost.demand.ttft_s, tenant.cost.demand.tpot_s)
