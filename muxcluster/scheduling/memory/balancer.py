"""Quotas that follow use: blocks move from models that leave theirs idle to those that lack some.

MuxServe §3.3 (adaptive batch scheduling) with three changes: quotas count blocks, rates are
measured, and a floor per model keeps a large, rarely used model from being starved.
"""

from collections.abc import Mapping, Sequence

from muxcluster.kvcache.cache import KvCache
from muxcluster.scheduling.memory.quotas import split, weights
from muxcluster.scheduling.state.model import ModelState

_GIVE = 0.5
"""Part of its idle blocks that a model gives in one period: half, so that a burst finds some."""

_EVEN_OUT = 0.25
"""Part of the way to the fair split that models short of blocks go in one period."""


class QuotaBalancer:
    """Targets per model, and the quotas in force on their way there.

    Invariants: used ≤ quota for each model; quotas sum to at most the pool; target ≥ floor. A
    quota shrinks only as its sequences give blocks back, and those are granted at once.
    """

    def __init__(
        self, kv: KvCache, models: Sequence[ModelState], floors: Mapping[str, int]
    ) -> None:
        self._kv = kv
        self._models = models
        self._floors = floors
        self._targets = {model.name: model.kv.quota for model in models}
        self.is_settled = True
        """True where the quotas in force are the targets."""

    def adapt(self) -> None:
        """Choose new targets from the use and the refusals since the last call."""
        short = [model for model in self._models if model.is_short]
        if short:
            pot = self._kv.num_blocks - sum(self._targets.values())
            pot += sum(self._give(model) for model in self._models if not model.is_short)
            self._share(short, pot)
        for model in self._models:
            model.is_short = False
            model.peak_blocks = model.kv.used
        self.is_settled = False
        self.settle()

    def _give(self, model: ModelState) -> int:
        """Lower the target of a model that lacks nothing; blocks given."""
        target = self._targets[model.name]
        idle = target - max(model.peak_blocks, self._floors[model.name])
        blocks = max(0, int(idle * _GIVE)) // model.blocks_per_column * model.blocks_per_column
        self._targets[model.name] -= blocks
        return blocks

    def _share(self, short: Sequence[ModelState], pot: int) -> None:
        """Move the targets of models short of blocks toward the split of all they may have.

        "Fair" is the same number of blocks per unit of measured demand. What idle models gave is
        handed out whole; what they hold already evens out a part of the way a period.
        """
        held = {model.name: self._targets[model.name] for model in short}
        least = {model.name: self._floors[model.name] for model in short}
        fair = split(short, weights(short), least, sum(held.values()) + pot)
        gains = {model.name: max(0, fair[model.name] - held[model.name]) for model in short}
        losses = {model.name: max(0, held[model.name] - fair[model.name]) for model in short}
        for model in short:
            name, column = model.name, model.blocks_per_column
            lost = int(losses[name] * _EVEN_OUT) // column * column
            self._targets[name] -= lost
            pot += lost
        part = min(1.0, pot / max(1, sum(gains.values())))
        for model in short:
            name, column = model.name, model.blocks_per_column
            self._targets[name] += int(gains[name] * part) // column * column

    def settle(self) -> None:
        """Bring the quotas in force as close to the targets as use allows."""
        if self.is_settled:
            return
        kv = self._kv
        quotas = {
            model.name: min(model.kv.quota, max(self._targets[model.name], model.kv.used))
            for model in self._models
        }
        free = kv.num_blocks - sum(quotas.values())
        for name in sorted(quotas, key=lambda name: quotas[name] / self._targets[name]):
            granted = max(0, min(self._targets[name] - quotas[name], free))
            quotas[name] += granted
            free -= granted
        kv.set_quotas(quotas)
        self.is_settled = quotas == self._targets

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        kv = self._kv
        quotas = {model.name: model.kv.quota for model in self._models}
        assert self.is_settled == (quotas == self._targets), "nobody knows that quotas must move"
        assert sum(quotas.values()) <= kv.num_blocks, f"quotas {quotas} exceed the pool"
        assert sum(self._targets.values()) <= kv.num_blocks, "targets exceed the pool"
        for model in self._models:
            name, quota, used = model.name, model.kv.quota, model.kv.used
            assert used <= quota, f"{name} uses {used} of quota {quota}"
            assert self._targets[name] >= self._floors[name], f"{name} is below its floor"
            assert quota >= self._floors[name], f"the quota of {name} is below its floor"
