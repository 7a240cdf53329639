"""Which multiprocessors the current stream's work runs on."""

import torch
from torch import Tensor

from muxcluster.kernels.on_gpu import triton_kernel


def sm_ids(ids: Tensor, sums: Tensor) -> None:
    """Each of many programs notes the id of the multiprocessor it runs on, and stays there for so
    long that all multiprocessors that may be used are needed.

    ids: int32 [programs], overwritten; on the CPU torch's threads take the multiprocessors' place.
    sums: float32 [programs], overwritten with what the programs pass the time with.
    Raises ValueError for wrong shapes or types.
    """
    if ids.ndim != 1 or ids.dtype != torch.int32 or not ids.is_contiguous():
        raise ValueError("ids must be a contiguous int32 [programs]")
    if sums.shape != ids.shape or sums.dtype != torch.float32 or not sums.is_contiguous():
        raise ValueError("sums must be a contiguous float32 [programs]")
    if ids.is_cuda:
        triton_kernel("sm_ids")(ids, sums)
        return
    ids.copy_(torch.arange(len(ids), dtype=torch.int32) % torch.get_num_threads())
    sums.zero_()
