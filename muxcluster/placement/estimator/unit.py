"""The estimate of one unit: what a mesh serves of the rates offered to it (MuxServe Eq. 1-3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.placement.cost import Cost, cost_for
from muxcluster.placement.estimator.fairness import fractions
from muxcluster.placement.estimator.latency import Latency, latencies
from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.shares import Loads, Tenant, candidates
from muxcluster.placement.execution import CannotRun, Execution, executions
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import (
    DoesNotFit,
    block_bytes,
    kv_blocks,
    recorded_bytes,
    usable_bytes,
)
from muxcluster.placement.problem import Problem
from muxcluster.placement.quota import split_blocks

# (index of a demand of the problem, requests/s offered to a unit)
Offer = tuple[int, float]
_BISECTIONS = 8


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
        self._units: dict[tuple[Gpu, int, tuple[Offer, ...]], UnitEstimate | None] = {}

    @property
    def num_estimates(self) -> int:
        """Distinct units estimated so far."""
        return len(self._units)

    def unit(self, gpu: Gpu, tp: int, offers: Sequence[Offer]) -> UnitEstimate | None:
        """Return the estimate, or None if the models do not fit on the mesh together.

        offers: at least one, each model at most once.
        """
        key = (gpu, tp, tuple(sorted(offers)))
        if key not in self._units:
            try:
                self._units[key] = self._estimate(gpu, tp, key[2])
            except DoesNotFit:
                self._units[key] = None
        return self._units[key]

    def refusal(self, gpu: Gpu, tp: int, offers: Sequence[Offer]) -> DoesNotFit | None:
        """Return the reason why `unit` returns None, else None."""
        try:
            self._estimate(gpu, tp, tuple(sorted(offers)))
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

    def _model(self, index: int, gpu: Gpu, tp: int, bytes_per_block: int) -> ModelCost | DoesNotFit:
        demand, limits = self.problem.demands[index], self.problem.limits
        which = (gpu, demand.itemsize)
        if which not in self._costs:
            self._costs[which] = cost_for(gpu, demand.itemsize, self.problem.profiles)
        try:
            return ModelCost(demand, tp, self._costs[which], limits, bytes_per_block)
        except DoesNotFit as refusal:
            return refusal

    def _estimate(self, gpu: Gpu, tp: int, offers: tuple[Offer, ...]) -> UnitEstimate:
        """Return the best execution's estimate; of equal ones the first, which shares SMs."""
        name = self.problem.demands[offers[0][0]].name
        try:
            ways = executions(gpu, tp, len(offers), self.problem.policy)
        except CannotRun as refusal:
            raise DoesNotFit(name, str(refusal)) from refusal
        found, refusals = [], []
        for way in ways:
            try:
                found.append(self._estimate_as(way, gpu, tp, offers))
            except DoesNotFit as refusal:
                refusals.append(refusal)
        if not found:
            raise refusals[-1]
        return max(found, key=lambda each: (each.value, -each.load))

    def _estimate_as(
        self, execution: Execution, gpu: Gpu, tp: int, offers: tuple[Offer, ...]
    ) -> UnitEstimate:
        problem = self.problem
        demands = [problem.demands[index] for index, _ in offers]
        per_block = block_bytes(demands, problem.limits)
        costs = [self.model(index, gpu, tp, per_block) for index, _ in offers]
        num_blocks = self._pool_blocks(execution, gpu, tp, costs, per_block)
        weights = [
            rate * demand.shape.sequence_bytes(demand.mean_tokens, demand.itemsize)
            for demand, (_, rate) in zip(demands, offers, strict=True)
        ]
        quotas = split_blocks(num_blocks, [cost.floor_blocks for cost in costs], weights)
        tenants = tuple(
            Tenant(cost, rate, cost.batch(quota))
            for cost, (_, rate), quota in zip(costs, offers, quotas, strict=True)
        )
        value, load, loads, served = self._best_option(tenants, candidates(tenants, execution))
        return UnitEstimate(num_blocks, tenants, quotas, execution, loads, served, value, load)

    def _pool_blocks(
        self,
        execution: Execution,
        gpu: Gpu,
        tp: int,
        costs: Sequence[ModelCost],
        bytes_per_block: int,
    ) -> int:
        """Compute `memory.kv_blocks` from memoised parts; that function words the refusal."""
        limits = self.problem.limits
        demands = [cost.demand for cost in costs]
        pool = usable_bytes(gpu, tp, execution) - sum(cost.static_bytes for cost in costs)
        pool -= max(cost.activation_bytes for cost in costs)
        pool -= recorded_bytes(gpu, tp, demands, execution)
        if limits.kv_bytes is not None:
            pool = min(pool, limits.kv_bytes)
        blocks = pool // bytes_per_block // tp * tp
        if pool < 0 or any(cost.floor_blocks > blocks for cost in costs):
            return kv_blocks(gpu, tp, demands, limits, execution)
        return blocks

    def _best_option(
        self, tenants: tuple[Tenant, ...], ways: Sequence[Loads]
    ) -> tuple[float, float, Loads, tuple[float, ...]]:
        """Return (value, load, loads, served fractions) of the best way of sharing.

        Targets only lower a value, so ways are tried from the greatest value without them on, until
        none can be better: latencies take most of the time of a plan.
        """
        objective = self.problem.objective
        values = [each.rate * each.cost.demand.worth(objective) for each in tenants]
        options = []
        for loads in ways:
            served = fractions(loads, values, self.problem.epsilon)
            value = sum(worth * share for worth, share in zip(values, served, strict=True))
            options.append((value, loads.greatest, loads, served))
        options.sort(key=lambda option: (-option[0], option[1]))
        if objective != "goodput":
            return options[0]
        best: tuple[float, float, Loads, tuple[float, ...]] | None = None
        for most, load, loads, served in options:
            if best is not None and (best[0], -best[1]) >= (most, -load):
                break
            kept, worths = _within_targets(tenants, loads, served, values)
            value = sum(worth * share for worth, share in zip(worths, kept, strict=True))
            if best is None or (value, -load) > (best[0], -best[1]):
                best = (value, load, loads, kept)
        assert best is not None, "there is always a way of running a unit"
        return best


def _within_targets(
    tenants: Sequence[Tenant], loads: Loads, served: tuple[float, ...], values: Sequence[float]
) -> tuple[tuple[float, ...], list[float]]:
    """Return the largest common part of `served` at which all reachable targets are met, and the
    values: 0 for a model whose targets fail even on an otherwise idle unit."""
    idle = latencies(tenants, loads, [0.0] * len(tenants))
    hopeful = [_meets(each, late) for each, late in zip(tenants, idle, strict=True)]

    def good(part: float) -> bool:
        found = latencies(tenants, loads, [part * share for share in served])
        return all(
            _meets(each, late)
            for each, late, hope in zip(tenants, found, hopeful, strict=True)
            if hope
        )

    low, high = 0.0, 1.0
    if good(1.0):
        low = 1.0
    for _ in range(_BISECTIONS if low < 1 else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    worth = [value if hope else 0.0 for value, hope in zip(values, hopeful, strict=True)]
    return tuple(low * share for share in served), worth


def _meets(tenant: Tenant, latency: Latency) -> bool:
    return latency.meets(tenant.cost.demand.ttft_s, tenant.cost.demand.tpot_s)
