"""Load of bench/gpu/multiplex.py: models, popularity, lengths, and a rate that loads the GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.gpu.running.models import shape_of
from bench.traces.muxserve import SHAREGPT_OUTPUT_TOKENS, SHAREGPT_PROMPT_TOKENS
from muxcluster.placement.cost import Cost
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent, Limited
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.popularity import power_law_rates
from muxcluster.workload.processes import Poisson

_SIGMA = 0.9  # Of the logarithm of lengths: about as wide as ShareGPT's
_LONGEST = 1024
_USUAL_ROWS = 32  # Sequences that decode together when a model is busy


@dataclass(frozen=True, slots=True)
class Tenant:
    """One of the models."""

    name: str
    shape: ModelShape
    part: float  # of all requests, 0 to 1


@dataclass(frozen=True, slots=True)
class Work:
    """The load of a comparison."""

    tenants: tuple[Tenant, ...]
    rate_per_s: float  # of all tenants together
    duration_s: float
    length_scale: float  # what ShareGPT's lengths are scaled by
    seed: int

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Of prompts and outputs, before the longest are cut."""
        scale = self.length_scale
        return scale * SHAREGPT_PROMPT_TOKENS, scale * SHAREGPT_OUTPUT_TOKENS

    @property
    def longest(self) -> int:
        """Most tokens of a prompt, and of an output."""
        return max(4, int(_LONGEST * self.length_scale))

    def arrivals(self) -> list[Arrival]:
        """Poisson, lengths log-normal about ShareGPT's means; the same for every system."""
        prompt, output = (LogNormal.of_mean(m, {50: m / _spread()}) for m in self.mean_tokens)
        lengths = Limited(Independent(prompt, output), self.longest, self.longest)
        sources = [
            Source(tenant.name, Poisson(self.rate_per_s * tenant.part), lengths)
            for tenant in self.tenants
        ]
        return list(generate(sources, self.seed, self.duration_s))


def _spread() -> float:
    """Mean over median of such a distribution."""
    return float(2.718281828459045 ** (_SIGMA**2 / 2))


def tenants_of(sizes: Sequence[str], alpha: float, *, tiny: bool) -> tuple[Tenant, ...]:
    """The first is the most popular; the i-th gets i^-alpha of what it gets (MuxServe §4.2)."""
    rates = power_law_rates(len(sizes), alpha, 1.0)
    return tuple(
        Tenant(f"{size}-{index}", shape_of(size, tiny=tiny), float(rate / rates.sum()))
        for index, (size, rate) in enumerate(zip(sizes, rates, strict=True))
    )


def busy_s(tenant: Tenant, cost: Cost, mean_tokens: tuple[float, float], share: float) -> float:
    """Seconds of a `share` of the GPU that one of its requests takes, at the usual batch."""
    prompt, output = mean_tokens
    context = prompt + output / 2
    step_s = cost.decode_s(tenant.shape, 1, share, _USUAL_ROWS, context)
    return cost.prefill_s(tenant.shape, 1, share, 1, prompt) + output * step_s / _USUAL_ROWS


def capacity_per_s(
    tenants: Sequence[Tenant], cost: Cost, mean_tokens: tuple[float, float]
) -> float:
    """Requests/s that fill the whole GPU when models take turns on it."""
    return 1 / sum(tenant.part * busy_s(tenant, cost, mean_tokens, 1.0) for tenant in tenants)


def static_shares(
    tenants: Sequence[Tenant], cost: Cost, mean_tokens: tuple[float, float]
) -> Mapping[str, float]:
    """Tenths of the SMs for each, by what its requests need; one tenth at least, all in all."""
    loads = {
        tenant.name: tenant.part * busy_s(tenant, cost, mean_tokens, 1.0) for tenant in tenants
    }
    tenths = dict.fromkeys(loads, 1)
    total = sum(loads.values())
    for _ in range(10 - len(tenths)):
        neediest = max(loads, key=lambda name: 10 * loads[name] / total - tenths[name])
        tenths[neediest] += 1
    return {name: count / 10 for name, count in tenths.items()}
