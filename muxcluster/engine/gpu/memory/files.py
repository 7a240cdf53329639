"""Memory in unnamed files that children inherit: host memory, and on a CPU all memory."""

import math
import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from muxcluster.engine.gpu.memory.manifest import Region

_ALIGNMENT = 64


class SharedFiles:
    """Allocates zeros in memory files and finds tensors in them; owns the files."""

    def __init__(self) -> None:
        self._regions: list[tuple[int, Region]] = []

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor on the CPU in a file of its own."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if not num_bytes:  # zero bytes cannot be mapped
            return torch.zeros(shape, dtype=dtype)
        descriptor = os.memfd_create("muxcluster")
        os.truncate(descriptor, num_bytes)
        region = Region(num_bytes, descriptor)
        flat = opened(region)
        self._regions.append((flat.data_ptr(), region))
        return flat.view(dtype).view(shape)

    def moved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of contiguous CPU tensors in one file.

        Tensors that shared memory still do, and neighbours in one storage are neighbours again.
        """
        places: dict[int, int] = {}
        end, last = 0, None
        for tensor in sorted(tensors.values(), key=Tensor.data_ptr):
            if tensor.data_ptr() in places:
                continue
            if last is None or not _follows(tensor, last):
                end = -(-end // _ALIGNMENT) * _ALIGNMENT
            places[tensor.data_ptr()] = end
            end, last = end + tensor.nbytes, tensor
        flat = self.zeros((end,), torch.uint8)
        copies = {}
        for name, tensor in tensors.items():
            start = places[tensor.data_ptr()]
            copy = flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            copies[name] = copy.copy_(tensor)
        return copies

    def find(self, tensor: Tensor) -> tuple[Region, int]:
        """See `manifest.Find`. Raises ValueError for memory that is in none of the files."""
        for start, region in self._regions:
            if start <= tensor.data_ptr() < start + region.num_bytes:
                return region, tensor.data_ptr() - start
        raise ValueError("a tensor lies in memory that no other process can map")


def _follows(tensor: Tensor, other: Tensor) -> bool:
    """Return whether `tensor` begins where `other`, of the same type and storage, ends."""
    is_same = tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    is_next = tensor.data_ptr() == other.data_ptr() + other.nbytes
    return is_same and is_next and tensor.dtype == other.dtype


def opened(region: Region) -> Tensor:
    """Map the file as uint8 [num_bytes]; the mapping lives as long as the tensor."""
    assert region.descriptor is not None, "not a file"
    mapping = mmap.mmap(region.descriptor, region.num_bytes)  # MAP_SHARED
    return torch.frombuffer(mapping, dtype=torch.uint8)
