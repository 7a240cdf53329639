"""Ids of GPUs as `CUDA_VISIBLE_DEVICES` names them, for a unit's MPS daemon and processes."""

import re
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Read by the driver when a process creates its context; it cannot change later.
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def gpu_id_of(device: str, environment: Mapping[str, str]) -> str:
    """Return the index or UUID of `device` ("cuda:N") in `CUDA_VISIBLE_DEVICES`.

    environment: this process's; N counts among its `CUDA_VISIBLE_DEVICES`. Raises ValueError where
    it names fewer GPUs.
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
    """Return `CUDA_VISIBLE_DEVICES` of a daemon's clients: "0" for an index, else the UUID."""
    # Indices count among the daemon's own GPUs.
    return "0" if gpu_id.isdigit() else gpu_id


def folder_name(gpu_id: str) -> str:
    """Return the GPU id as part of a path, shortened: a socket's path has at most 107 bytes."""
    return re.sub(r"[^A-Za-z0-9-]", "_", gpu_id)[:44]
