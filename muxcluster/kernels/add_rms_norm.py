"""Residual add and RMSNorm in one pass; plain-torch twin of the Triton kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.on_gpu import triton_on_gpu
from muxcluster.kernels.rows import check_like, check_rows


@triton_on_gpu
def add_rms_norm(
    hidden: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    gemma: bool = False,
) -> Tensor:
    """RMSNorm (Zhang and Sennrich, 2019) of `hidden`, to which `residual` is added first.

    hidden: [rows, width]; one row a token, or a head where queries and keys are normalised.
    weight: [width]. eps: added to the mean square.
    residual: as `hidden`, changed in place to the sum, which the next layer adds to; None: no sum.
    gemma: the factor is 1 + weight.

    Returns a new [rows, width]. Rounds where transformers' modules do: the sum to the tensors'
    type; the normalised row, computed in fp32, to that type before it is multiplied by `weight`
    (Llama and most others), or only after it was multiplied in fp32 (`gemma`).

    Raises ValueError for wrong shapes, types or strides, before anything is written.
    """
    check_norm(hidden, weight, residual)
    wide = (hidden if residual is None else residual.add_(hidden)).float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if gemma:
        return (normed * (1 + weight.float())).to(hidden.dtype)
    return weight * normed.to(hidden.dtype)


def check_norm(hidden: Tensor, weight: Tensor, residual: Tensor | None) -> None:
    """Raise ValueError unless the arguments are what `add_rms_norm` says."""
    check_rows("hidden", hidden)
    if weight.shape != hidden.shape[1:] or weight.dtype != hidden.dtype or weight.stride(0) != 1:
        raise ValueError(
            f"weight must be {hidden.dtype} [{hidden.shape[1]}], "
            f"got {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()}"
        )
    if residual is not None:
        check_like("residual", residual, hidden)
