"""The ranks of a unit as processes on one node, by torch.distributed.

Collectives are issued on the current stream and nobody waits for them on the host: from torch 2.8
on NCCL launches a synchronous call's kernel there, so a CUDA graph captures it like any other (that
path has not run yet; on the CPU gloo does the same work, and blocks).
"""

import os
import socket
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

_NEVER = timedelta(days=1)
"""The unit watches its ranks and ends those that hang; a collective needs no limit of its own."""

_LOOPBACK = "lo"


class ProcessGroup:
    """A `RankGroup` of processes on one node, by torch.distributed: NCCL on GPUs, gloo on CPUs."""

    def __init__(self, rank: int, size: int, device: str, meeting_point: Path) -> None:
        """Blocks until all ranks have come. meeting_point: a file that all of them can reach and
        that none of them has made; one group a process."""
        place = torch.device(device)
        is_cpu = place.type == "cpu"
        if is_cpu:
            _prefer_loopback()
        else:
            torch.cuda.set_device(place)
        dist.init_process_group(
            "gloo" if is_cpu else "nccl",
            init_method=meeting_point.as_uri(),
            rank=rank,
            world_size=size,
            timeout=_NEVER,
            device_id=None if is_cpu else place,
        )
        self._rank = rank
        self._size = size
        self._num_calls = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def num_calls(self) -> int:
        """Collectives this rank has entered; ranks that differ are out of step for good."""
        return self._num_calls

    def all_reduce(self, partial: Tensor) -> Tensor:
        self._num_calls += 1
        dist.all_reduce(partial)
        return partial

    def gather(self, part: Tensor) -> Tensor:
        self._num_calls += 1
        whole = part.new_empty((self._size, *part.shape))
        _all_gather(whole.view(-1), part.contiguous().view(-1))
        return whole.movedim(0, -2).reshape(*part.shape[:-1], -1)

    def close(self) -> None:
        """Leave the group; the other ranks should, too."""
        dist.destroy_process_group()


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""One call under its new and its old name (torch 2.13 warns of the old one)."""


def _prefer_loopback() -> None:
    """A mesh never spans nodes, and the host's own name may lead nowhere."""
    names = {name for _, name in socket.if_nameindex()}
    if _LOOPBACK in names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
