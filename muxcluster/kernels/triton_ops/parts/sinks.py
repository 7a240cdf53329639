"""Attention sinks in the kernels: see `muxcluster.kernels.cpu.sinks`."""

import math

import triton
import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def share_of_keys(logs, sinks):
    """Which share of the weights the keys keep beside sinks, fp32; next to nothing where there are
    no keys.

    logs: log 2 of the sums of the exponentials of the keys' scores. sinks: as the model has them.
    """
    ahead = sinks.to(tl.float32) * LOG2E - logs
    return 1.0 / (1.0 + tl.exp2(tl.minimum(ahead, 126.0)))  # beyond, the power would overflow
