"""Uploads small arrays of a step to the device: packed into one buffer, one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

# Arrays begin at multiples of 16 bytes: Triton compiles another kernel for other pointers.
_ALIGNED_WORDS = 2

_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32} | {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}


def num_words(arrays: Sequence[Array]) -> int:
    """Return how many words of 8 bytes `arrays` take when packed."""
    return sum(_words(array) for array in arrays)


class PackedUpload:
    """Copies arrays to a device without waiting for it; they may change once the call returns."""

    # The host's side is pinned memory of torch's own cache, which reuses none of it before the
    # device has read it.

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"

    def __call__(
        self, arrays: Sequence[Array], into: Tensor | None = None, num_known: int = 0
    ) -> list[Tensor]:
        """Return the arrays as tensors on the device, side by side in one buffer.

        arrays: int64, int32, float64 or bool. into: int64 [at least `num_words`] on the device,
        overwritten; arrays of the same shapes lie in the same places of it each time. None: a new
        buffer. num_known: how many of the first are not returned, because the caller has them from
        before. Raises ValueError if `into` is too short.
        """
        total = num_words(arrays)
        if into is not None and len(into) < total:
            raise ValueError(f"{total} words do not fit into {len(into)} words")
        host = torch.empty(total, dtype=torch.int64, pin_memory=self._is_pinned)
        words = torch.empty(total, dtype=torch.int64, device=self._device) if into is None else into
        written, tensors, start = host.numpy(), [], 0
        for number, array in enumerate(arrays):
            end = start + _words(array)
            written[start:end].view(array.dtype)[: array.size] = array.ravel()
            if number >= num_known:
                elements = words[start:end].view(_DTYPES[array.dtype])[: array.size]
                tensors.append(elements.view(array.shape))
            start = end
        words[:total].copy_(host, non_blocking=True)
        return tensors


def _words(array: Array) -> int:
    return -(-array.nbytes // (8 * _ALIGNED_WORDS)) * _ALIGNED_WORDS
