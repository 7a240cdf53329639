"""Argument checks of the kernels that work row by row."""

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_rows(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless `tensor` is fp32, bf16 or fp16 [rows, width ≥ 1], rows contiguous."""
    if (
        tensor.dtype not in _DTYPES
        or tensor.dim() != 2
        or not tensor.shape[1]
        or tensor.stride(1) != 1
    ):
        raise ValueError(
            f"{name} must be fp32, bf16 or fp16 [rows, width] with width contiguous, "
            f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        )


def check_like(name: str, tensor: Tensor, model: Tensor) -> None:
    """Raise ValueError unless `tensor` is rows of `model`'s shape, type and device."""
    check_rows(name, tensor)
    if (tensor.shape, tensor.dtype, tensor.device) != (model.shape, model.dtype, model.device):
        raise ValueError(
            f"{name} must be {model.dtype} {tuple(model.shape)} on {model.device}, "
            f"got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        )
