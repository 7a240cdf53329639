"""Finds the multiprocessors that the current stream's work runs on."""

import torch
from torch import Tensor

from muxcluster.kernels.on_gpu import triton_on_gpu


@triton_on_gpu
def sm_ids(ids: Tensor, sums: Tensor) -> None:
    """Write to each entry of `ids` the multiprocessor that one of many programs runs on.

    Programs run for so long that all multiprocessors that may be used are needed.
    ids: int32 [programs], overwritten; on the CPU torch's threads take the multiprocessors' place.
    sums: float32 [programs], overwritten with the results of the programs' arithmetic.
    Raises ValueError for wrong shapes or types.
    """
    check_sm_ids(ids, sums)
    ids.copy_(torch.arange(len(ids), dtype=torch.int32) % torch.get_num_threads())
    sums.zero_()


def check_sm_ids(ids: Tensor, sums: Tensor) -> None:
    """Raise ValueError unless the arguments are as `sm_ids` says."""
    if ids.ndim != 1 or ids.dtype != torch.int32 or not ids.is_contiguous():
        raise ValueError("ids must be a contiguous int32 [programs]")
    if sums.shape != ids.shape or sums.dtype != torch.float32 or not sums.is_contiguous():
        raise ValueError("sums must be a contiguous float32 [programs]")
