"""Names of the GPUs of this machine."""

import torch


def names() -> tuple[str, ...]:
    """Return the name of every GPU that CUDA shows; none if there is no GPU."""
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
