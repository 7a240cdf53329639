"""What the planner is asked: models with their demand, nodes, and the engine's limits."""

from dataclasses import dataclass, field

from placement.hardware import Gpu
from placement.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Demand:
    """One model and what is expected of it.

    itemsize: bytes per weight and KV element. rate: requests/s. prompt_tokens, output_tokens:
    means. max_model_len, max_seqs: longest sequence and most sequences that hold KV at once.
    """

    name: str
    shape: ModelShape
    rate: float
    prompt_tokens: float
    output_tokens: float
    max_model_len: int
    max_seqs: int
    itemsize: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return self.shape.kv_bytes_per_token(self.itemsize)

    @property
    def mean_tokens(self) -> float:
        """Mean length of a sequence over its decode."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with `num_gpus` equal GPUs."""

    name: str
    num_gpus: int
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class Limits:
    """How units are built. block_tokens: per block at head_dim 128.

    token_budget: most tokens a job processes. kv_bytes: pool of a unit, None = all that is left.
    """

    block_tokens: int = 16
    token_budget: int = 2048
    kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a planner may look at. Model names are unique, so are node names."""

    demands: tuple[Demand, ...]
    nodes: tuple[Node, ...]
    limits: Limits = field(default=Limits())
