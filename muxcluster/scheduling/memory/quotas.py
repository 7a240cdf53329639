"""Quotas of blocks: floors, a fair split, and their adaptation to use.

MuxServe §3.3 (adaptive batch scheduling) with three changes: quotas count blocks, rates are
measured, and a floor per model keeps a large, rarely used model from being starved.
"""

import math
from collections.abc import Mapping, Sequence

from muxcluster.kvcache.cache import KvCache
from muxcluster.scheduling.state.model import ModelState

_GIVE = 0.5  # part of its idle blocks that a model gives a period: half, so that a burst finds some
_EVEN_OUT = 0.25  # part of the way to the fair split that models short of blocks go a period


def weights(models: Sequence[ModelState]) -> dict[str, float]:
    """Return each model's demand for memory: rate × blocks of a mean request × seconds it has them.

    By Little's law its requests would hold as much if all were served at once: shares in proportion
    to it serve the same part of each model's requests. Without the seconds, large models and those
    with long outputs are served least. Planned numbers before the first measurement, measured ones
    after it.
    """
    return {
        model.name: model.meter.rate_per_s
        * model.meter.mean_tokens
        * model.meter.mean_held_s
        / model.block_tokens
        * model.blocks_per_column
        for model in models
    }


def floors(models: Sequence[ModelState], num_blocks: int) -> dict[str, int]:
    """Return the blocks that no adaptation takes from a model: one sequence of max_model_len.

    Where the pool is too small for that, every model gets the same part of it, rounded down to
    columns; longer requests are then rejected. Raises ValueError where a column does not fit.
    """
    wanted = {model.name: model.blocks(model.spec.max_model_len) for model in models}
    part = min(1.0, num_blocks / sum(wanted.values()))
    least = {m.name: _whole_columns(m, wanted[m.name] * part) for m in models}
    short = [name for name, blocks in least.items() if blocks == 0]
    if short:
        raise ValueError(f"a pool of {num_blocks} blocks holds not one column of {short[0]!r}")
    return least


def split(
    models: Sequence[ModelState],
    shares: Mapping[str, float],
    least: Mapping[str, int],
    num_blocks: int,
) -> dict[str, int]:
    """Divide `num_blocks` in proportion to `shares`, no model below `least`, in whole columns.

    `least` must sum to at most `num_blocks`; the result does too.
    """
    quotas: dict[str, int] = {}
    rest, open_models = num_blocks, list(models)
    while open_models:
        total = sum(shares[m.name] for m in open_models)
        even = 1.0 / len(open_models)
        parts = {
            m.name: rest * (shares[m.name] / total if total > 0 else even) for m in open_models
        }
        pinned = [m for m in open_models if parts[m.name] < least[m.name]]
        if not pinned:
            quotas.update((m.name, _whole_columns(m, parts[m.name])) for m in open_models)
            break
        for model in pinned:
            quotas[model.name] = least[model.name]
            rest -= least[model.name]
        open_models = [m for m in open_models if m.name not in quotas]
    return quotas


def _whole_columns(model: ModelState, blocks: float) -> int:
    # A part that is whole but for its rounding must not lose a column.
    return int(blocks + 1e-6) // model.blocks_per_column * model.blocks_per_column


class QuotaBalancer:
    """Sets targets per model, and moves the quotas in force towards them.

    Blocks go from models that leave theirs idle to those that lack some. Invariants: used ≤ quota
    for each model; quotas sum to at most the pool; target ≥ floor. A quota shrinks only as its
    sequences give blocks back, and those are granted at once.
    """

    def __init__(
        self, kv: KvCache, models: Sequence[ModelState], floors: Mapping[str, int]
    ) -> None:
        self._kv = kv
        self._models = models
        self._floors = floors
        self._targets = {model.name: model.kv.quota for model in models}
        self.is_settled = True  # the quotas in force are the targets

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
        """Lower the target of a model that lacks nothing; return the blocks given."""
        target = self._targets[model.name]
        idle = target - max(model.peak_blocks, self._floors[model.name])
        blocks = max(0, int(idle * _GIVE)) // model.blocks_per_column * model.blocks_per_column
        self._targets[model.name] -= blocks
        return blocks

    def _share(self, short: Sequence[ModelState], pot: int) -> None:
        """Move the targets of models short of blocks toward a fair split of all they may have."""
        # "Fair" is the same number of blocks per unit of measured demand. `pot`, which idle models
        # gave, is handed out whole; what the models hold already moves `_EVEN_OUT` of the way.
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
        assert self.is_settled == (quotas == self._targets), "quotas must move and nothing says so"
        assert sum(quotas.values()) <= kv.num_blocks, f"quotas {quotas} exceed the pool"
        assert sum(self._targets.values()) <= kv.num_blocks, "targets exceed the pool"
        for model in self._models:
            name, quota, used = model.name, model.kv.quota, model.kv.used
            assert used <= quota, f"{name} uses {used} of quota {quota}"
            assert self._targets[name] >= self._floors[name], f"{name} is below its floor"
            assert quota >= self._floors[name], f"the quota of {name} is below its floor"


class Adaptation:
    """Measures rates and moves quotas once a period; the driver tells the time."""

    def __init__(
        self, models: Sequence[ModelState], balancer: QuotaBalancer | None, period_s: float
    ) -> None:
        """balancer: None where no quotas are in force."""
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
            model.meter.update(elapsed_s, model.held(now))
        if self._balancer is not None:
            self._balancer.adapt()

    def settle(self) -> None:
        """Let quotas follow after blocks may have been given back."""
        if self._balancer is not None:
            self._balancer.settle()

    def next_s(self) -> float | None:
        """Return when `advance` acts next; None where it changes no decision."""
        if self._balancer is None or self._last_s is None:
            return None
        return self._last_s + self._period_s

    @property
    def undisturbed_until_s(self) -> float:
        """Time before which neither rates nor quotas move, unless requests end; -inf: now."""
        is_settled = self._balancer is None or self._balancer.is_settled
        if self._last_s is None or not is_settled:
            return -math.inf
        return self._last_s + self._period_s

    def check(self) -> None:
        """Raise AssertionError where the quotas break an invariant."""
        if self._balancer is not None:
            self._balancer.check()
