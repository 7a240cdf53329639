"""Batch work of a unit: how much is done beside the interactive requests that it serves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from muxcluster.core.unitspec import LENDING_PACKINGS
from muxcluster.placement.estimator.latency import Latency, flows, latencies
from muxcluster.placement.estimator.merged import MergedCost
from muxcluster.placement.estimator.modelcost import ModelCost
from muxcluster.placement.estimator.shares import (
    Loads,
    Tenant,
    expected,
    within_loads,
)
from muxcluster.placement.execution import Execution, UnitPolicy

MOST = 1024.0  # multiples of what is asked beyond this one are not told apart
_BISECTIONS = 5
_ROUNDS = 2
_BEYOND = 2.0  # times what is done, at which every model lacks something
_SERVED = 1 - 1e-3
_FULL = _SERVED**-3  # load of a resource at which no rates are served to _SERVED
# Part of a target that batch work may fill: the rest is the packing's margin, and it evens out what
# makes other steps late (tests/sim/test_backlog_check.py).
_FILLED = 0.9
_LEAST = 1e-6  # part done below which none is


class BatchWork(NamedTuple):
    """Batch requests that are asked of one model on a unit."""

    cost: ModelCost  # with their lengths
    rate: float  # requests/s

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens."""
        demand = self.cost.demand
        return self.rate * (demand.prompt_tokens + demand.output_tokens)


@dataclass(frozen=True, slots=True)
class BacklogEstimate:
    """Batch work of a unit, by model."""

    asked: tuple[float, ...]  # asked, done: tokens/s, prompts and outputs
    done: tuple[float, ...]
    load: float  # of the unit's fullest resource if all requests of both classes were served

    @property
    def undone(self) -> float:
        """Tokens/s that are asked and not done."""
        return sum(self.asked) - sum(self.done)


class Backlogged:
    """A unit with batch work beside its interactive requests, which keep what they have.

    Both classes of a model are in the same jobs (`MergedCost`), so batch work fits as long as the
    steady state of both together serves all; with a packing that runs batch work in the slack of
    the targets (`hybrid`), as long as tokens also keep coming in time.
    """

    def __init__(
        self,
        tenants: Sequence[Tenant],
        served: Sequence[float],
        works: Sequence[BatchWork | None],
        *,
        num_blocks: int,
        execution: Execution,
        policy: UnitPolicy,
    ) -> None:
        """served: by model, fraction of its rate. works: None for a model without batch work."""
        self.tenants = tenants
        self.works = works
        self._rates = [each.rate * part for each, part in zip(tenants, served, strict=True)]
        self._num_blocks = num_blocks
        self._execution = execution
        self._targets: list[float | None] = [None] * len(tenants)
        if policy.scheduler.packing in LENDING_PACKINGS:
            # a target that is missed without batch work binds none
            self._targets = [
                None if target is None or late.tpot_s.high > target else target
                for target, late in zip(
                    [each.cost.demand.tpot_s for each in tenants], self.latencies(0.0), strict=True
                )
            ]

    def estimate(self, load: float) -> BacklogEstimate:
        """Return what is done of what is asked. load: of the unit without batch work."""
        asked = [0.0 if work is None else work.tokens_per_s for work in self.works]
        whole = self._at(1.0)
        tenants, loads = self.together(whole)
        if self._serves(tenants, loads):
            full = max(load, min(1.0, loads.greatest))
            return BacklogEstimate(tuple(asked), tuple(asked), full)
        scale = self._scale(whole)
        options = [[scale * each for each in whole]]
        if sum(work is not None for work in self.works) > 1:
            options.append(self._settled(options[0], scale))
        done = max(
            (
                [part * tokens for part, tokens in zip(parts, asked, strict=True)]
                for parts in options
            ),
            key=sum,
        )
        part = sum(done) / sum(asked)
        full = max(1.0, load + max(0.0, 1 - load) / max(part, _LEAST))
        return BacklogEstimate(tuple(asked), tuple(done), full)

    def capacity(self) -> float:
        """Return the largest multiple of all that is asked which the unit could do, at most
        MOST."""
        high = 1.0
        while high < MOST and self.holds(self._at(high)):
            high *= 2
        return high * _largest(lambda part: self.holds(self._at(high * part)))

    def latencies(self, factor: float) -> tuple[Latency, ...]:
        """Return the latencies of requests of both classes, as if they were one, while `factor`
        times what is asked is done."""
        tenants, loads = self.together(self._at(factor))
        return latencies(tenants, loads, [1.0] * len(tenants))

    def holds(self, parts: Sequence[float]) -> bool:
        """Return whether so many times what is asked of each model is done."""
        return self._serves(*self.together(parts))

    def together(self, parts: Sequence[float]) -> tuple[tuple[Tenant, ...], Loads]:
        """Return the unit's models with both classes of requests, and its loads."""
        costs, rates = [], []
        for tenant, rate, work, part in zip(
            self.tenants, self._rates, self.works, parts, strict=True
        ):
            more = 0.0 if work is None else part * work.rate
            rates.append(max(rate, 1e-12) + more)
            costs.append(
                tenant.cost
                if work is None or more == 0
                else MergedCost(tenant.cost, work.cost, more / rates[-1], work.cost.max_rows)
            )
        # quotas move to where memory is used, and batch work takes what is idle of any
        tenants = tuple(
            Tenant(cost, rate, cost.batch(self._num_blocks), cost.rows(self._num_blocks))
            for cost, rate in zip(costs, rates, strict=True)
        )
        return tenants, expected(tenants, self._execution)

    def _at(self, factor: float) -> list[float]:
        return [0.0 if work is None else factor for work in self.works]

    def _scale(self, mix: Sequence[float], near: float = 0.5) -> float:
        """Return the largest multiple of the parts `mix` that is done; near: about it."""
        return _largest(lambda part: self.holds([part * each for each in mix]), near)

    def _settled(self, parts: Sequence[float], scale: float) -> list[float]:
        """Return the parts that are done on a unit on which the batch work of all models waits.

        Each decodes with all rows it can have, so they settle by rows and steps and not by what is
        asked: a model whose rows are short does not hold back the others. parts: that are done in
        the proportions of what is asked, `scale` times that.
        """
        for _ in range(_ROUNDS):
            mix = self._saturated([min(1.0, _BEYOND * part) for part in parts])
            if max(mix) == 0.0:
                return list(parts)
            most = max(mix)
            mix = [part / most for part in mix]
            scale = self._scale(mix, scale)
            parts = [scale * part for part in mix]
        return list(parts)

    def _saturated(self, parts: Sequence[float]) -> list[float]:
        """Return the parts that are done where so many are asked, more than can be done."""
        tenants, loads = self.together(parts)
        rates = [each.rate for each in tenants]
        served = [
            min(1.0, flow.rate / rate)
            for flow, rate in zip(flows(tenants, loads, rates), rates, strict=True)
        ]
        return [
            0.0 if work is None else max(0.0, (share * rate - own) / work.rate)
            for work, share, rate, own in zip(
                self.works, within_loads(loads, served), rates, self._rates, strict=True
            )
        ]

    def _serves(self, tenants: Sequence[Tenant], loads: Loads) -> bool:
        if loads.greatest > _FULL:  # `within_loads` would say so after a steady state was found
            return False
        rates = [each.rate for each in tenants]
        found = flows(tenants, loads, rates)
        parts = [min(1.0, flow.rate / rate) for flow, rate in zip(found, rates, strict=True)]
        if min(within_loads(loads, parts)) < _SERVED:
            return False
        held = [
            each.cost.sequence_blocks * flow.rows for each, flow in zip(tenants, found, strict=True)
        ]
        if sum(held) > self._num_blocks:
            return False
        if all(target is None for target in self._targets):
            return True
        late = latencies(tenants, loads, [1.0] * len(tenants))
        return all(
            target is None or each.tpot_s.median <= _FILLED * target
            for each, target in zip(late, self._targets, strict=True)
        )


def _largest(holds: Callable[[float], bool], near: float = 0.5) -> float:
    """Return about the largest part below 1 that holds, within 2 %; 0 if it is below _LEAST.

    near: where to begin, at most 0.5.
    """
    low = min(0.5, max(near, _LEAST))
    if holds(low):
        while low < 0.5 and holds(2 * low):
            low *= 2
    else:
        low /= 2
        while not holds(low):
            low /= 2
            if low < _LEAST:
                return 0.0
    high = 2 * low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
