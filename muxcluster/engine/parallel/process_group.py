"""The ranks of a unit as processes on one node, through torch.distributed.

NCCL's collectives are issued on the current stream, and the host does not wait for them: from torch
2.8 on a synchronous call launches its kernel there, so a CUDA graph captures it like any other (not
yet run on hardware). gloo works on host memory and blocks: it is for CPUs, and for ranks that share
a GPU, which NCCL refuses.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# The unit watches its ranks and ends those that hang; a collective needs no limit of its own.
_NEVER = timedelta(days=1)

_LOOPBACK = "lo"

NCCL, GLOO = "nccl", "gloo"


def backend_for(devices: Sequence[str]) -> str:
    """Return the backend for ranks on `devices`, one each."""
    on_gpus = all(torch.device(device).type == "cuda" for device in devices)
    return NCCL if on_gpus and len(set(devices)) == len(devices) else GLOO


class ProcessGroup:
    """A `RankGroup` of processes on one node, through torch.distributed; it may have one member.

    Its collectives work between `join` and `leave`; it may be joined again, in a fork too: gloo's
    threads end with `leave` (tests/engine/parallel/test_process_group.py).
    """

    def __init__(self, rank: int, size: int, device: str, backend: str | None = None) -> None:
        """backend: NCCL or GLOO, by default NCCL on GPUs and gloo on CPUs."""
        self._rank = rank
        self._size = size
        self._place = torch.device(device)
        self._backend = backend or backend_for([device])
        self._has_gloo = self._backend == GLOO
        self._num_calls = 0
        self._handle: Any = None  # of torch; None: its default group

    def join(self, meeting_point: Path) -> None:
        """Block until all ranks have joined; one group per process, and those made `beside` it.

        meeting_point: a file that all of them can reach and that does not exist yet.
        """
        if self._has_gloo:
            _prefer_loopback()
        if self._place.type == "cuda":
            torch.cuda.set_device(self._place)
        dist.init_process_group(
            self._backend,
            init_method=meeting_point.as_uri(),
            rank=self._rank,
            world_size=self._size,
            timeout=_NEVER,
            device_id=None if self._has_gloo else self._place,
        )
        self._num_calls = 0

    def beside(self) -> "ProcessGroup":
        """Return a second group of the same joined ranks, with a communicator of its own.

        All ranks make the same calls in the same order. `leave` of the first ends both.
        """
        other = ProcessGroup(self._rank, self._size, str(self._place), self._backend)
        other._handle = dist.new_group(timeout=_NEVER, backend=self._backend)
        return other

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def is_recordable(self) -> bool:
        """True if a CUDA graph may hold its collectives."""
        return not self._has_gloo

    @property
    def num_calls(self) -> int:
        """Collectives this rank has entered; ranks that differ are out of step for good."""
        return self._num_calls

    def all_reduce(self, partial: Tensor) -> Tensor:
        self._num_calls += 1
        here = self._reachable(partial)
        dist.all_reduce(here, group=self._handle)
        return partial if here is partial else partial.copy_(here)

    def gather(self, part: Tensor) -> Tensor:
        self._num_calls += 1
        here = self._reachable(part)
        whole = here.new_empty((self._size, *here.shape))
        _all_gather(whole.view(-1), here.contiguous().view(-1), group=self._handle)
        return whole.to(part.device).movedim(0, -2).reshape(*part.shape[:-1], -1)

    def _reachable(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a copy in host memory (a wait for the device) if gloo needs it."""
        return tensor.cpu() if self._has_gloo and tensor.is_cuda else tensor

    def leave(self) -> None:
        """Leave the group; the other ranks should leave, too."""
        dist.destroy_process_group()


# One call under its new and its old name (torch 2.13 warns of the old one).
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _prefer_loopback() -> None:
    """Use loopback: a mesh never spans nodes, and the host's own name may not resolve."""
    names = {name for _, name in socket.if_nameindex()}
    if _LOOPBACK in names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
