"""Attention sinks in the kernels: see `muxcluster.kernels.cpu.sinks`."""

import math

import triton
import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def weight_of_sinks(sinks, logs):
    """Exponentials of sinks, as the model has them, over 2 ** logs; fp32.

    Cut where it would overflow: next to it the weights of keys are nothing.
    """
    return tl.exp2(tl.minimum(sinks.to(tl.float32) * LOG2E - logs, 126.0))


@triton.jit
def share_of_keys(logs, sinks):
    """Which share of the weights the keys keep beside sinks, fp32; next to nothing where there are
    no keys.

    logs: log 2 of the sums of the exponentials of the keys' scores. sinks: as the model has them.
    """
    return 1.0 / (1.0 + weight_of_sinks(sinks, logs))
