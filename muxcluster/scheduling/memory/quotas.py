"""Quotas of blocks: floors, a fair split, and their adaptation to use.

MuxServe §3.3 (adaptive batch scheduling) with three changes: quotas count blocks, rates are
measured, and a floor per model keeps a large, rarely used model from being starved.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from muxcluster.core.residency import Residency
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
        * model.kv.mean_column(model.meter.mean_tokens)
        for model in models
    }


def floors(
    models: Sequence[ModelState], num_blocks: int, resident_bytes: int = 0
) -> dict[str, int]:
    """Return the blocks that no adaptation takes from a model: one sequence of max_model_len.

    Where the pool is too small for that, every model gets the same part of it (of what a sequence
    of one token of each model with states leaves), rounded down to columns; longer requests are
    then rejected.
    resident_bytes: of the weights that fit together, 0 for all; then only the floors of models that
    may be awake together need to fit. Raises ValueError where a column does not fit.
    """
    wanted: dict[str, float]
    wanted = {model.name: model.most_blocks(model.spec.max_model_len) for model in models}
    if _most_at_once(models, wanted, resident_bytes) > num_blocks:
        # The same part of the length, so that windows make no model's longest request shorter.
        first = {m.name: m.blocks(1) if m.spec.state_columns else 0 for m in models}
        whole = {m.name: m.blocks(m.spec.max_model_len) - first[m.name] for m in models}
        left = num_blocks - _most_at_once(models, first, resident_bytes)
        if left < 0:
            raise _no_column(num_blocks, max(first, key=lambda name: first[name]))
        part = left / max(1.0, _most_at_once(models, whole, resident_bytes))
        wanted = {
            name: min(wanted[name], first[name] + blocks * part) for name, blocks in whole.items()
        }
    least = {m.name: _whole_columns(m, wanted[m.name]) for m in models}
    short = [model.name for model in models if least[model.name] < model.blocks(1)]
    if short:
        raise _no_column(num_blocks, short[0])
    return least


def _no_column(num_blocks: int, name: str) -> ValueError:
    return ValueError(f"a pool of {num_blocks} blocks holds not one column of {name!r}")


def _most_at_once(
    models: Sequence[ModelState], wanted: Mapping[str, float], resident_bytes: int
) -> float:
    """Return a bound of the sum of `wanted` over models whose weights fit together.

    Those with most blocks a byte of weights first, the last one in part.
    """
    if not resident_bytes:
        return sum(wanted.values())
    stay = [model for model in models if model.spec.residency is Residency.ALWAYS]
    others = [model for model in models if model not in stay]
    most = float(sum(wanted[model.name] for model in stay))
    left = resident_bytes - sum(model.spec.resident_bytes for model in stay)

    def per_byte(model: ModelState) -> float:
        return wanted[model.name] / max(1, model.spec.resident_bytes)

    for model in sorted(others, key=per_byte, reverse=True):
        num_bytes = max(1, model.spec.resident_bytes)
        most += wanted[model.name] * max(0.0, min(1.0, left / num_bytes))
        left -= num_bytes
    return max(most, max(wanted.values()))


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

    Blocks go from models that leave theirs idle to those that lack some. Where weights move, the
    pool is divided among the models that are awake, resident or on their way: a parked one has no
    quota, and its floor comes back when it wakes. Invariants: used ≤ quota for each model; quotas
    sum to at most the pool; target ≥ floor of each awake model. A quota shrinks only as its
    sequences give blocks back, and those are granted at once, first to a model below its floor.
    """

    def __init__(
        self,
        kv: KvCache,
        models: Sequence[ModelState],
        floors: Mapping[str, int],
        awake: Collection[str] | None = None,
    ) -> None:
        """awake: models whose quotas are in force, the others have 0; by default all."""
        self._kv = kv
        self._models = models
        self._floors = floors
        self._awake = frozenset(floors) if awake is None else frozenset(awake)
        self._targets = {model.name: model.kv.quota for model in models}
        self.is_settled = True  # the quotas in force are the targets

    def follow(self, awake: Collection[str]) -> None:
        """Divide the pool anew where other models are awake; their floors fit together.

        Models that stay awake keep their proportions, and one that wakes gets a part by its demand
        beside theirs. Models that fell asleep hold no blocks.
        """
        names = frozenset(awake)
        if names == self._awake:
            return
        stayed = [model.name for model in self._models if model.name in names & self._awake]
        demand = weights(self._models)
        known = sum(demand[name] for name in stayed)
        held = sum(self._targets[name] for name in stayed)
        if known > 0 and held > 0:
            demand |= {name: self._targets[name] / held * known for name in stayed}
        self._awake = names
        parts = split(self._awake_models(), demand, self._floors, self._kv.num_blocks)
        self._targets = dict.fromkeys(self._targets, 0) | parts
        self.is_settled = False
        self.settle()

    def _awake_models(self) -> list[ModelState]:
        return [model for model in self._models if model.name in self._awake]

    def adapt(self) -> None:
        """Choose new targets from the use and the refusals since the last call."""
        awake = self._awake_models()
        short = [model for model in awake if model.is_short]
        if short:
            pot = self._kv.num_blocks - sum(self._targets.values())
            pot += sum(self._give(model) for model in awake if not model.is_short)
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
        kv, targets = self._kv, self._targets
        quotas = {
            model.name: min(model.kv.quota, max(targets[model.name], model.kv.used))
            for model in self._models
        }
        free = kv.num_blocks - sum(quotas.values())
        lacking = [name for name in quotas if quotas[name] < targets[name]]
        lacking.sort(key=lambda name: (self._has_floor(name, quotas), quotas[name] / targets[name]))
        for name in lacking:
            granted = min(targets[name] - quotas[name], free)
            quotas[name] += granted
            free -= granted
        kv.set_quotas(quotas)
        self.is_settled = quotas == targets

    def _has_floor(self, name: str, quotas: Mapping[str, int]) -> bool:
        return quotas[name] >= self._floors[name]

    def debtors(self) -> list[ModelState]:
        """Return models that hold blocks beyond their targets while one that woke waits for them.

        That is an awake model below its floor, with interactive requests and refused blocks.
        """
        awake = [] if self.is_settled else self._awake_models()
        waits = any(
            model.is_short and model.has_interactive and model.kv.quota < self._floors[model.name]
            for model in awake
        )
        return [m for m in awake if m.kv.used > self._targets[m.name]] if waits else []

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
            if name not in self._awake:
                assert quota == self._targets[name] == 0, f"{name} is away and has quota {quota}"
                continue
            assert self._targets[name] >= self._floors[name], f"{name} is below its floor"
            is_whole = sum(quotas.values()) == kv.num_blocks
            assert quota >= self._targets[name] or is_whole, (
                f"{name} waits for blocks that are free"
            )


# Preempts a sequence of one of these models at a time; False where none can be.
TakeBack = Callable[[Sequence[ModelState], float], bool]


class Adaptation:
    """Measures rates and moves quotas once a period; the driver tells the time."""

    def __init__(
        self,
        models: Sequence[ModelState],
        balancer: QuotaBalancer | None,
        period_s: float,
        take_back: TakeBack,
    ) -> None:
        """balancer: None where no quotas are in force."""
        self._models = models
        self._balancer = balancer
        self._period_s = period_s
        self._take_back = take_back
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

    def follow(self, awake: Collection[str]) -> None:
        """Divide the pool among these models, whose weights are resident or on their way."""
        if self._balancer is not None:
            self._balancer.follow(awake)

    def settle(self, now: float) -> None:
        """Let quotas follow after blocks may have been given back.

        A model that woke and lacks blocks of its floor does not wait for other models' sequences to
        end: those beyond their models' targets are preempted, the least senior first.
        """
        if self._balancer is None:
            return
        self._balancer.settle()
        while (debtors := self._balancer.debtors()) and self._take_back(debtors, now):
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
