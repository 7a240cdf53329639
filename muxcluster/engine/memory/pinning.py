"""Host memory with locked pages, which a GPU copies from and to at full speed."""

# torch's own pinned memory (`pin_memory=True`) rounds every size up to a power of two and keeps it,
# which suits small buffers that are used again. Large memory is locked here, at its exact size.

import math
import mmap
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor


class _LockedPages(mmap.mmap):
    """Anonymous memory that is unlocked before it is unmapped."""

    unlock: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.unlock is not None:
            with suppress(Exception):  # CUDA may be gone when the process ends
                self.unlock()


def pinned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros on the CPU in locked memory of just that size, freed with the last view.

    Raises RuntimeError with CUDA's message.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if not num_bytes:  # zero bytes cannot be mapped
        return torch.zeros(shape, dtype=dtype)
    pages = _LockedPages(-1, num_bytes)
    tensor = torch.frombuffer(pages, dtype=dtype).view(shape)
    pages.unlock = pin(tensor)
    return tensor


def pin(tensor: Tensor) -> Callable[[], object]:
    """Lock the pages of a contiguous, non-empty CPU tensor; return a function that unlocks them.

    Raises RuntimeError with CUDA's message.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    address = tensor.data_ptr()
    torch.cuda.check_error(int(runtime.cudaHostRegister(address, tensor.nbytes, 0)))
    return lambda: runtime.cudaHostUnregister(address)
