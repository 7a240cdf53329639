"""When rates are measured and quotas move: once a period, on the time the driver tells."""

import math
from collections.abc import Sequence

from muxcluster.scheduling.memory.balancer import QuotaBalancer
from muxcluster.scheduling.state.model import ModelState


class Adaptation:
    """The periodic part of a unit. balancer: None where no quotas are in force."""

    def __init__(
        self, models: Sequence[ModelState], balancer: QuotaBalancer | None, period_s: float
    ) -> None:
        self._models = models
        self._balancer = balancer
        self._period_s = period_s
        self._last_s: float | None = None

    def advance(self, now: float) -> None:
        """Measure rates and move quotas where a period has passed; the first call starts one."""
        if self._last_s is None:
            self._last_s = now
        elapsed_s = now - self._last_s
        if elapsed_s < self._period_s:
            return
        self._last_s = now
        for model in self._models:
            model.meter.update(elapsed_s)
        if self._balancer is not None:
            self._balancer.adapt()

    def settle(self) -> None:
        """Blocks may have been given back: let quotas follow."""
        if self._balancer is not None:
            self._balancer.settle()

    def next_s(self) -> float | None:
        """When `advance` has something to do next; None where it changes no decision."""
        if self._balancer is None or self._last_s is None:
            return None
        return self._last_s + self._period_s

    @property
    def undisturbed_until_s(self) -> float:
        """Before then neither rates nor quotas move, unless requests end; -inf: at once."""
        is_settled = self._balancer is None or self._balancer.is_settled
        if self._last_s is None or not is_settled:
            return -math.inf
        return self._last_s + self._period_s

    def check(self) -> None:
        """Raise AssertionError where the quotas break an invariant."""
        if self._balancer is not None:
            self._balancer.check()
