"""Small arrays of a step on their way to the device: packed into one buffer, one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

_ALIGNED_WORDS = 2
"""Arrays begin at multiples of 16 bytes: Triton compiles a kernel anew for pointers that do not."""

_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32} | {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.bool_): torch.bool,
}


def num_words(arrays: Sequence[Array]) -> int:
    """Words of 8 bytes that `arrays` take when packed."""
    return sum(_words(array) for array in arrays)


class PackedUpload:
    """Copies arrays to a device without waiting for it.

    The host's side is pinned memory of torch's own cache, which gives none of it out again before
    the device has read it; so the arrays may change as soon as the call returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"

    def __call__(
        self, arrays: Sequence[Array], into: Tensor | None = None, num_known: int = 0
    ) -> list[Tensor]:
        """The arrays as tensors on the device, side by side in one buffer.

        arrays: int64, int32, float64 or bool. into: int64 [at least `num_words`] there, to be
        overwritten; arrays of the same shapes lie in the same places of it each time. None: new.
        num_known: so many of the first are not returned, the caller having them from before.
        Raises ValueError where `into` is too short.
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
