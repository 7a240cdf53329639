"""Which GPU a unit runs on, as its daemon and its processes must be told."""

import re
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""Read by the driver when a process creates its context; it cannot change later."""


def gpu_id_of(device: str, environment: Mapping[str, str]) -> str:
    """What `CUDA_VISIBLE_DEVICES` calls the GPU of `device` ("cuda:N"): an index or a UUID.

    environment: ours, whose own `CUDA_VISIBLE_DEVICES` N counts in. Raises ValueError where it
    names fewer GPUs.
    """
    index = int(device.partition(":")[2] or 0)
    visible = environment.get(VISIBLE)
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        raise ValueError(f"{device} is not among the {len(names)} GPUs of {VISIBLE}={visible}")
    return names[index]


def seen_by_clients(gpu_id: str) -> str:
    """`CUDA_VISIBLE_DEVICES` of a daemon's clients: indices count among the daemon's own GPUs,
    UUIDs stay."""
    return "0" if gpu_id.isdigit() else gpu_id


def folder_name(gpu_id: str) -> str:
    """The GPU as part of a path; short, for a socket's path has at most 107 bytes."""
    return re.sub(r"[^A-Za-z0-9-]", "_", gpu_id)[:44]
