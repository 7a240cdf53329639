"""What a request costs: seconds of all compute, seconds of all memory bandwidth (BlendServe §2.3).

Integrals over a request's life, not seconds on a clock: a GPU that overlaps both perfectly takes
the larger of the two sums. Reading the weights is left out, as a large batch shares it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.placement.hardware import Gpu
from muxcluster.placement.shapes.division import kv_copies
from muxcluster.placement.shapes.shape import ModelShape

Tokens = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResourceModel:
    """Resource seconds per token of one model on the GPUs of one unit."""

    token_s: float  # compute seconds of one token without attention
    attention_s: float  # compute seconds of one token attending to one other
    kv_s: float  # seconds to read the keys and values of one token, all heads and layers
    kv_bytes: int  # bytes of the same, on all GPUs of the unit

    def prefill_s(self, start: Tokens, end: Tokens) -> Tokens:
        """Return compute seconds of prompt tokens `start` to `end`, with their attention."""
        pairs = (end * end - start * start) / 2
        return (end - start) * self.token_s + pairs * self.attention_s

    def decode_s(self, output: Tokens) -> Tokens:
        """Return compute seconds of `output` tokens; their attention counts as memory seconds."""
        return output * self.token_s

    def read_s(self, prompt: Tokens, output: Tokens, square: Tokens) -> Tokens:
        """Return memory seconds: each output token reads the KV of all tokens before it.

        square: of the output tokens, or its mean where `output` is one.
        """
        return (prompt * output + square / 2) * self.kv_s

    def density(self, prompt: Tokens, output: Tokens) -> Tokens:
        """Return compute over memory seconds of requests that share nothing."""
        compute = self.prefill_s(np.zeros_like(prompt), prompt) + self.decode_s(output)
        return compute / self.read_s(prompt, output, output * output)


def resource_model(shape: ModelShape, gpu: Gpu, tp: int = 1, itemsize: int = 2) -> ResourceModel:
    """Return the resource model of `shape` over `tp` GPUs.

    Like the paper it counts the input embedding among the weights a token is multiplied with, and
    of a mixture of experts the weights that one token uses. A model without keys and values counts
    one byte a token: all orders see its prompts as compute only. itemsize: bytes of one key or
    value element.
    """
    embedding = 0 if shape.tied_embeddings else shape.embedding_params
    kv_bytes = max(1, round(shape.kv_bytes_per_token(itemsize) * kv_copies(shape, tp)))
    flops = gpu.flops * tp
    return ResourceModel(
        2 * (shape.active_params + embedding) / flops,
        shape.attention_flops / flops,
        kv_bytes / (gpu.bandwidth * tp),
        kv_bytes,
    )
