"""The reference's estimate of a mesh: batches grow one by one; the best score is its value.

Between two profiled batches prefill seconds are constant. A run of "+1 for the model with the
lowest throughput / rate" is therefore taken at once, with the same states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import ge

from muxcluster.placement.compat.facts import (
    ACTIVATION_GB,
    GPU_GB,
    MOST_DECODE_SM,
    NEIGHBOUR_GB,
    USABLE_SHARE,
    WEIGHTS_GB_PER_GPU,
)
from muxcluster.placement.compat.solo import Tenant


@dataclass(frozen=True, slots=True)
class MeshEstimate:
    """The reference's estimate of one mesh."""

    value: float  # mean requests/s of the models by rate; 0 if every batch starts at its cap
    # batches, throughputs (requests/s, not capped by the rate): by model, at `value`, or at the
    # start where that is 0
    batches: tuple[int, ...]
    throughputs: tuple[float, ...]


def fits(tenants: Sequence[Tenant]) -> bool:
    """Return whether these models may share a mesh of their tp."""
    taken, shares = -NEIGHBOUR_GB, 0
    for each in tenants:
        taken += each.weights_gb + NEIGHBOUR_GB
        shares += each.decode_sm
    return shares <= MOST_DECODE_SM and taken <= WEIGHTS_GB_PER_GPU * tenants[0].tp


def cache_gb(tenants: Sequence[Tenant]) -> float:
    """GB of the mesh left by weights and activations, at least 0."""
    taken = sum(each.weights_gb + ACTIVATION_GB for each in tenants)
    return max(0.0, USABLE_SHARE * GPU_GB * tenants[0].tp - taken)


def cache_parts(tenants: Sequence[Tenant]) -> list[float]:
    """GB of cache of each model, by rate x KV bytes per token."""
    total = cache_gb(tenants)
    weights = [each.rate * each.seq_gb for each in tenants]
    scale = sum(weights)
    return [total * (weight / scale) for weight in weights]


def estimate(tenants: Sequence[Tenant]) -> MeshEstimate:
    """Estimate one mesh; all `tenants` have the same tp."""
    growth = _Growth(tenants)
    value, batches = growth.run()
    prefill_s = sum(
        each.prefill_s[each.step(batch)] for each, batch in zip(tenants, batches, strict=True)
    )
    rates = (
        each.throughput(batch, each.step(batch), prefill_s)
        for each, batch in zip(tenants, batches, strict=True)
    )
    return MeshEstimate(value, tuple(batches), tuple(rates))


def value(tenants: Sequence[Tenant]) -> float:
    """Return `estimate(tenants).value` only, for the search."""
    return _Growth(tenants).run()[0]


class _Growth:
    """Batches of the models while they grow.

    steps: index of each batch's profiled step. prefill_s: of all models in one round.
    """

    __slots__ = ("batches", "caps", "prefill_s", "steps", "tenants", "total_rate")

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self.tenants = tenants
        self.caps, self.batches, self.steps = [], [], []
        self.prefill_s = self.total_rate = 0.0
        for tenant, part in zip(tenants, cache_parts(tenants), strict=True):
            cap = tenant.cap(part)
            batch = int(tenant.probe(cap))
            step = tenant.step(batch)
            self.caps.append(cap)
            self.batches.append(batch)
            self.steps.append(step)
            self.prefill_s += tenant.prefill_s[step]
            self.total_rate += tenant.rate

    def run(self) -> tuple[float, Sequence[int]]:
        """Return the best value and its batches."""
        best, batches = 0.0, list(self.batches)
        while not self._full():
            waiting = self._waiting()
            level, first = self._next_step(waiting)
            self._grow(waiting, level)
            if self._full():
                self._shrink(waiting)
            found = self._value()
            if found > best:
                best, batches = found, list(self.batches)
            if first is None:
                break
            self._take_step(first)
        return best, batches

    def _full(self) -> bool:
        """Return whether every batch is at its cap; growth ends, and this state has no value."""
        return all(map(ge, self.batches, self.caps))

    def _rate(self, index: int, batch: int) -> float:
        return self.tenants[index].throughput(batch, self.steps[index], self.prefill_s)

    def _waiting(self) -> list[int]:
        """Models that need a larger batch and may have it."""
        return [
            index
            for index, tenant in enumerate(self.tenants)
            if self.batches[index] < self.caps[index]
            and self._rate(index, self.batches[index]) < tenant.needed
        ]

    def _next_step(self, waiting: Sequence[int]) -> tuple[float, int | None]:
        """Return the throughput / rate at which a model first leaves its profiled step, and that
        model."""
        level, first = inf, None
        for index in waiting:
            tenant = self.tenants[index]
            last = tenant.batches[self.steps[index]]
            if last < self.caps[index]:
                rate = self._rate(index, last)
                if rate < tenant.needed and rate / tenant.rate < level:
                    level, first = rate / tenant.rate, index
        return level, first

    def _grow(self, waiting: Sequence[int], level: float) -> None:
        """Grow each model to its first batch that satisfies it or reaches the level, or to its
        last."""
        for index in waiting:
            tenant, step = self.tenants[index], self.steps[index]
            last = min(self.caps[index], tenant.batches[step])
            goal = min(tenant.needed, level * tenant.rate)
            growth = 1 - tenant.per_seq_s * goal
            if growth > 0:
                reached = ceil(goal * (tenant.fixed_s[step] + self.prefill_s) / growth)
                last = max(self.batches[index], min(last, reached))
            self.batches[index] = last

    def _shrink(self, grown: Sequence[int]) -> None:
        """Undo the last "+1": it went to the model with the highest throughput / rate."""
        before = {index: self._rate(index, self.batches[index] - 1) for index in grown}
        last = max(grown, key=lambda index: before[index] / self.tenants[index].rate)
        self.batches[last] -= 1

    def _value(self) -> float:
        total = 0.0
        for tenant, batch, step in zip(self.tenants, self.batches, self.steps, strict=True):
            total += tenant.rate * tenant.throughput(batch, step, self.prefill_s)
        return total / self.total_rate

    def _take_step(self, index: int) -> None:
        """Move a model's batch past its profiled step."""
        step = self.steps[index]
        prefill_s = self.tenants[index].prefill_s
        self.batches[index] += 1
        self.steps[index] = step + 1
        self.prefill_s += prefill_s[step + 1] - prefill_s[step]
