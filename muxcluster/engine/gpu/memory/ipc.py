"""Device memory of another process through CUDA IPC: each allocation has a handle to map it."""

import os
from typing import Protocol

import torch
from torch import Tensor

from muxcluster.core.errors import EngineFailure
from muxcluster.engine.gpu.driver import DriverError
from muxcluster.engine.gpu.memory.allocator import check_configuration, check_segments
from muxcluster.engine.gpu.memory.manifest import Region
from muxcluster.engine.gpu.refusals import IPC_REFUSED


class IpcDriver(Protocol):
    """The driver calls that are needed: see `driver.Driver`."""

    def allocation(self, address: int) -> tuple[int, int]: ...

    def handle(self, base: int) -> bytes: ...

    def open_handle(self, handle: bytes) -> int: ...


class DeviceExports:
    """Finds the allocations of this process's tensors."""

    # torch puts many tensors in one allocation; each allocation gets one handle.

    def __init__(self, driver: IpcDriver) -> None:
        self._driver = driver
        self._handles: dict[int, bytes] = {}

    def find(self, tensor: Tensor) -> tuple[Region, int]:
        """See `manifest.Find`. Raises EngineFailure if the driver gives no handle."""
        try:
            base, num_bytes = self._driver.allocation(tensor.data_ptr())
            if base not in self._handles:
                self._handles[base] = self._driver.handle(base)
        except DriverError as refusal:
            raise EngineFailure(IPC_REFUSED.format(reason=refusal)) from refusal
        return Region(num_bytes, handle=self._handles[base]), tensor.data_ptr() - base


class DeviceImports:
    """Maps allocations of another process on `device`, whose primary context must be current."""

    def __init__(self, driver: IpcDriver, device: torch.device) -> None:
        self._driver = driver
        self._device = device

    def opened(self, region: Region) -> Tensor:
        """Map the region as uint8 [num_bytes]; it stays mapped until the process ends.

        Raises EngineFailure if the driver refuses the handle.
        """
        try:
            address = self._driver.open_handle(region.handle)
        except DriverError as refusal:
            raise EngineFailure(IPC_REFUSED.format(reason=refusal)) from refusal
        return torch.as_tensor(_Mapped(address, region.num_bytes), device=self._device)


class _Mapped:
    """Bytes at an address in a form that torch uses without a copy (CUDA array interface, v3)."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def check_plain_memory() -> None:
    """Raise EngineFailure unless all that this process has allocated on GPUs can be exported."""
    check_configuration(os.environ)
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    check_segments(segments)
