"""Describes tensors of one process so that another can map them: regions of memory and offsets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Region:
    """A region of memory that another process can map."""

    num_bytes: int
    # descriptor of its file, inherited by children under the same number; None: device memory,
    # which `handle` opens
    descriptor: int | None = None
    handle: bytes = b""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor: `offset` bytes into region number `region`, strides in elements.

    region: None if it is empty.
    """

    name: str
    region: int | None
    offset: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors that an owner hands to a worker."""

    regions: tuple[Region, ...]
    tensors: tuple[Placed, ...]


# Returns the region that contains a tensor's first element, and its offset there in bytes.
Find = Callable[[Tensor], tuple[Region, int]]


def manifest_of(tensors: Mapping[str, Tensor], find: Find) -> Manifest:
    """Return where `tensors` lie; several may share memory (ties). Raises what `find` raises."""
    regions: dict[Region, int] = {}
    placed = []
    for name, tensor in tensors.items():
        region, offset = None, 0
        if tensor.numel():
            found, offset = find(tensor)
            region = regions.setdefault(found, len(regions))
        dtype = str(tensor.dtype).removeprefix("torch.")
        placed.append(
            Placed(name, region, offset, dtype, tuple(tensor.shape), tuple(tensor.stride()))
        )
    return Manifest(tuple(regions), tuple(placed))


def tensors_of(
    manifest: Manifest, device: torch.device, opened: Callable[[Region], Tensor]
) -> dict[str, Tensor]:
    """Return the same tensors in this process, over the owner's memory.

    opened: maps a region, uint8 [num_bytes]; called once per region. device: of empty tensors.
    """
    flats = [opened(region) for region in manifest.regions]
    found = {}
    for each in manifest.tensors:
        dtype = getattr(torch, each.dtype)
        if each.region is None:
            found[each.name] = torch.empty(each.shape, dtype=dtype, device=device)
            continue
        flat = flats[each.region][each.offset : each.offset + _num_bytes(each, dtype)]
        found[each.name] = flat.view(dtype).as_strided(each.shape, each.stride)
    return found


def _num_bytes(placed: Placed, dtype: torch.dtype) -> int:
    """Return the bytes from the first element to the end of the last."""
    steps = zip(placed.shape, placed.stride, strict=True)
    return dtype.itemsize * (1 + sum((size - 1) * stride for size, stride in steps))
