"""Activation of the gate times the up projection; plain-torch twin of the Triton kernel."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import gelu, silu

from muxcluster.kernels.on_gpu import triton_on_gpu
from muxcluster.kernels.rows import check_like, check_rows

Activation = Literal["silu", "gelu_tanh"]


@triton_on_gpu
def silu_mul(gate: Tensor, up: Tensor | None = None, activation: Activation = "silu") -> Tensor:
    """Return activated `gate` times `up`, element by element (GLU variants, Shazeer 2020).

    gate: [tokens, width]; or [tokens, 2 * width] without `up`: the gate's columns, then up's.
    up: as `gate`.
    activation: x * sigmoid(x), or GELU by its tanh formula (Gemma).

    Returns a new [tokens, width]. Rounds where transformers does: the activation, computed in fp32,
    to the tensors' type, then the product. Raises ValueError for wrong shapes, types, strides or
    activation.
    """
    gate, up = gate_and_up(gate, up, activation)
    return (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up


def gate_and_up(gate: Tensor, up: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """Return the two factors [tokens, width], views if they came as one.

    Raises ValueError unless the arguments are what `silu_mul` says.
    """
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, got {activation}")
    check_rows("gate", gate)
    if up is None:
        if gate.shape[1] % 2:
            raise ValueError(f"gate and up in one tensor need even width, got {gate.shape[1]}")
        gate, up = gate.chunk(2, dim=1)
    check_like("up", up, gate)
    return gate, up
