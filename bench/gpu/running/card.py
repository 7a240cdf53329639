"""The GPU's entry in a record."""

from typing import Any

import torch


def card_of(device: torch.device) -> dict[str, Any]:
    """Name, size and versions of torch and CUDA."""
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type == "cpu":
        return {"name": "no GPU (CPU, tiny shapes)", **versions}
    from_device = torch.cuda.get_device_properties(device)
    return {
        "name": from_device.name,
        "multiprocessors": from_device.multi_processor_count,
        "memory_bytes": from_device.total_memory,
        "capability": f"{from_device.major}.{from_device.minor}",
        **versions,
    }
