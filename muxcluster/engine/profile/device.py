"""Which GPUs are here."""

import torch


def names() -> tuple[str, ...]:
    """Of every GPU that CUDA shows, as it calls them; none where there is no GPU."""
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
