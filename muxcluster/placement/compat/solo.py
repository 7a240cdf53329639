"""A model alone on a mesh: batch by bisection, and its SM share (MuxServe Alg. 2)."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.compat.curves import OUTPUT_TOKENS, PROMPT_TOKENS, Curve, Curves
from muxcluster.placement.compat.facts import ACTIVATION_GB, FACTS, GPU_GB, LARGEST_SOLO_SM, Facts

_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS
# A throughput within 10 % of a rate, and within 0.5 requests/s, satisfies it.
_SLACK, _MOST_SLACK = 0.1, 0.5


@dataclass(frozen=True, slots=True)
class Model:
    """A model to place."""

    name: str
    kind: str  # a key of FACTS
    rate: float  # requests/s

    @property
    def facts(self) -> Facts:
        return FACTS[self.kind]


class Tenant:
    """A model on a mesh of `tp` GPUs at a decode share of `decode_sm` %.

    A batch b is served in fixed_s[step] + per_seq_s · b seconds of decode, where `step` is that of
    the first of `batches` ≥ b, and prefill_s[step] of prefill, all of its output tokens included.
    """

    __slots__ = (
        *("name", "rate", "weights_gb", "seq_gb", "tp", "decode_sm", "batches"),
        *("prefill_s", "fixed_s", "per_seq_s", "needed", "_found"),
    )

    def __init__(self, model: Model, tp: int, decode_sm: int, curve: Curve) -> None:
        facts = model.facts
        self.name, self.rate, self.weights_gb = model.name, model.rate, facts.weights_gb
        self.seq_gb = _TOKENS * facts.kv_gb_per_token
        self.tp, self.decode_sm = tp, decode_sm
        self.batches, self.prefill_s = curve.batches, curve.prefill_s
        self.fixed_s = tuple(OUTPUT_TOKENS * seconds for seconds in curve.decode_s)
        self.per_seq_s = OUTPUT_TOKENS * facts.upload_s
        self.needed = least_satisfying(model.rate)
        self._found: dict[int, float] = {}

    def cap(self, cache_gb: float) -> int:
        """Most sequences that fit into that much cache."""
        return min(int(cache_gb / self.seq_gb), self.batches[-1])

    def step(self, batch: float) -> int:
        """Index of the first profiled batch that is not smaller."""
        return bisect_left(self.batches, batch)

    def throughput(self, batch: float, step: int, prefill_s: float) -> float:
        """Requests/s at a batch if all prefills of a round take `prefill_s`."""
        return batch / (self.fixed_s[step] + self.per_seq_s * batch + prefill_s)

    def alone(self, batch: float) -> float:
        step = self.step(batch)
        return self.throughput(batch, step, self.prefill_s[step])

    def probe(self, cap: int) -> float:
        """The batch, not yet rounded down, at which the reference's bisection for the rate ends."""
        if cap not in self._found:
            low, high, middle = 1.0, float(max(2, cap)), 1.0
            while high - low >= 1:
                middle = (low + high) / 2
                if self.alone(middle) >= self.rate:
                    high = middle
                else:
                    low = middle
            self._found[cap] = middle
        return self._found[cap]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The share chosen for a model alone, its throughput, and whether that satisfies the rate."""

    tenant: Tenant
    batch: int
    throughput: float
    satisfied: bool


def least_satisfying(rate: float) -> float:
    """The smallest throughput that satisfies a rate."""
    if rate <= _MOST_SLACK / _SLACK + _MOST_SLACK:
        return rate / (1 + _SLACK)
    return rate - _MOST_SLACK


def candidates(model: Model, curves: Curves, fill: float) -> Iterator[Candidate]:
    """Yield, for each tp from the model's least on, the lowest satisfying share, else the fastest.

    fill: share of each GPU's memory that its cache is assumed to have.
    """
    for tp, by_share in curves.by_model[model.kind].items():
        if tp >= model.facts.least_tp:
            yield _candidate(model, tp, by_share, fill * GPU_GB * tp)


def _candidate(model: Model, tp: int, by_share: Mapping[int, Curve], cache_gb: float) -> Candidate:
    best: Candidate | None = None
    for share, curve in by_share.items():
        if share > LARGEST_SOLO_SM:
            break
        tenant = Tenant(model, tp, share, curve)
        batch = tenant.probe(tenant.cap(cache_gb))
        rate = tenant.alone(batch)
        if rate > tenant.needed:
            return Candidate(tenant, int(batch), model.rate, True)
        if best is None or rate > best.throughput:
            best = Candidate(tenant, int(batch), rate, False)
    assert best is not None
    return best


def fill_share(models: Sequence[Model], num_gpus: int) -> float:
    """Weights and activations of all models over all memory of the cluster."""
    needed = sum(model.facts.weights_gb + ACTIVATION_GB for model in models)
    return needed / (GPU_GB * num_gpus)
