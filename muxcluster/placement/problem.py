"""The planner's input: models with their demand, nodes, objective, limits of the engine."""

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

from muxcluster.core.residency import Residency
from muxcluster.core.unitspec import SpeculationSpec
from muxcluster.placement.cost.profile import Profile
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.shapes.shape import ModelShape

# Score of a plan: served requests/s; the same, each times its model's weight; requests/s served
# within the latency targets; the part of its rate that the model served least gets; GPUs used, the
# fewest that meet all rates.
Objective = Literal["throughput", "weighted", "goodput", "fair", "fewest-gpus"]

# Scatter of prompt and output lengths: those of log-normal lengths whose logarithm has this
# deviation. Between ShareGPT's (0.8) and Azure's code and conversation traces (0.9 to 1.1).
LENGTH_SIGMA = 0.9
LENGTH_CV2 = math.expm1(LENGTH_SIGMA**2)  # squared coefficient of variation
_NORMAL = NormalDist()
LENGTH_CUBE = math.exp(3 * LENGTH_SIGMA**2)  # third moment over the mean's cube


def _cut_moment(mean: float, most: float, power: int) -> float:
    """Return the mean of min(x, most)^power for log-normal x with this mean and LENGTH_SIGMA."""
    sigma = LENGTH_SIGMA
    middle = math.log(mean) - sigma**2 / 2
    place = (math.log(most) - middle) / sigma
    below = math.exp(power * middle + (power * sigma) ** 2 / 2) * _NORMAL.cdf(place - power * sigma)
    return below + most**power * (1 - _NORMAL.cdf(place))


@dataclass(frozen=True, slots=True)
class Backlog:
    """Batch work of a model: done beside its interactive requests, which it gives way to."""

    tokens_per_s: float  # prompt and output tokens a second that do it in time
    prompt_tokens: float  # prompt_tokens, output_tokens: means
    output_tokens: float

    def decode_tokens(self, most: int) -> float:
        """Return the mean length of a sequence in decode, as `Demand.mean_tokens`, where `most`
        tokens cut the long ones: batch work is measured by the memory that it fills."""
        prompt = _cut_moment(self.prompt_tokens, float(most), 1)
        room = max(1.0, most - prompt)
        output, square = (_cut_moment(self.output_tokens, room, power) for power in (1, 2))
        return min(prompt + square / (2 * output), float(most))

    @property
    def rate(self) -> float:
        """Batch requests/s."""
        return self.tokens_per_s / (self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Demand:
    """One model with its demand."""

    name: str
    shape: ModelShape
    rate: float  # requests/s
    prompt_tokens: float  # prompt_tokens, output_tokens: means
    output_tokens: float
    # max_model_len, max_seqs: longest sequence and most interactive ones that hold KV at once
    max_model_len: int
    max_seqs: int
    itemsize: int = 2  # bytes per weight and KV element
    weight: float = 1.0  # of a request in the "weighted" objective
    ttft_s: float | None = None  # ttft_s, tpot_s: latency targets, None without one
    tpot_s: float | None = None
    undivided: str = ""  # why the engine cannot divide it over GPUs, "" if it can
    backlog: Backlog | None = None  # its batch work, None without any
    # Mean length of a sequence in decode; None: that of one class of requests of these lengths
    decode_tokens: float | None = None
    residency: Residency = Residency.ALWAYS  # what may become of its weights while it is idle
    batch_seqs: int = 0  # rows for batch sequences beside `max_seqs`, see `memory.batch_seqs`
    # Its files have ordinary weights, which are quantised whenever they are loaded
    is_rounded: bool = False
    constrained_share: float = 0.0  # part of its requests whose output has a constraint
    adapter_bytes: int = 0  # of its adapters, counted whole on every GPU of a mesh
    speculation: SpeculationSpec | None = None  # how its output is guessed; None: it is not

    def worth(self, objective: Objective) -> float:
        """Return what one served request/s adds to the objective; "fewest-gpus" first counts the
        parts of rates that are met."""
        if objective == "weighted":
            return self.weight
        return 1 / self.rate if objective == "fewest-gpus" else 1.0

    @property
    def num_rows(self) -> int:
        """Most sequences of both classes that hold KV at once."""
        return self.max_seqs + self.batch_seqs

    @property
    def may_park(self) -> bool:
        """Whether its weights may be parked while others need their memory."""
        return self.residency is not Residency.ALWAYS

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return self.shape.kv_bytes_per_token(self.itemsize)

    @property
    def mean_tokens(self) -> float:
        """Mean length of a sequence in decode.

        Half of its output is there, but long outputs are met more often, as they decode for longer
        (mean residual life, Kleinrock vol. 1, §5.2).
        """
        if self.decode_tokens is not None:
            return self.decode_tokens
        longer = self.output_tokens * (1 + LENGTH_CV2) / 2
        return min(self.prompt_tokens + longer, float(self.max_model_len))


@dataclass(frozen=True, slots=True)
class Node:
    """`num_gpus` equal GPUs that can form meshes among them."""

    name: str
    num_gpus: int
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine's configuration."""

    block_tokens: int = 16
    token_budget: int = 2048  # most tokens of a job
    kv_bytes: int | None = None  # pool of a unit, None = all remaining memory
    # Host memory for weights that may be parked, for each GPU of a mesh, None = not limited
    parked_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Models to place on nodes. Names are unique in each."""

    demands: tuple[Demand, ...]
    nodes: tuple[Node, ...]
    limits: Limits = field(default=Limits())
    objective: Objective = "throughput"
    # Measurements to predict seconds from; GPUs and models that are in none are predicted by a
    # roofline
    profiles: tuple[Profile, ...] = ()
    policy: UnitPolicy = UnitPolicy()

    @property
    def backlog_tokens_per_s(self) -> float:
        """Batch tokens a second of all models."""
        return sum(each.backlog.tokens_per_s for each in self.demands if each.backlog is not None)

    def without_backlogs(self) -> "Problem":
        """Return the problem with interactive requests alone."""
        demands = tuple(replace(each, backlog=None) for each in self.demands)
        return replace(self, demands=demands)

    def at_rates(self, factor: float) -> "Problem":
        """Return the problem with the rates of all models times `factor`."""
        demands = tuple(replace(each, rate=each.rate * factor) for each in self.demands)
        return replace(self, demands=demands)

    def in_order(self) -> "Problem":
        """Return the problem with models and nodes by name, so that their order changes no plan."""
        return replace(
            self,
            demands=tuple(sorted(self.demands, key=lambda each: each.name)),
            nodes=tuple(sorted(self.nodes, key=lambda each: each.name)),
        )
