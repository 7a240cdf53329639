"""Green contexts and memory of other processes, by the CUDA driver API (12.4 and later), by ctypes.

torch.cuda.green_contexts makes a context of the first n multiprocessors and no other, so two of
its contexts always overlap; complements, which prefill and decode side by side need, are to be had
from the driver alone.
"""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

_SM_RESOURCE = 1
_DEFAULT_STREAM = 1
_NON_BLOCKING = 1
_LAZY_PEER_ACCESS = 1
HANDLE_BYTES = 64


class DriverError(Exception):
    """A call that the driver refused, with the driver's own name for the reason."""


class _SmResource(ctypes.Structure):
    """CUdevResource: 144 bytes since 12.4; the SM count stands after the padding."""

    _fields_ = [
        ("type", c_int),
        ("padding", ctypes.c_ubyte * 92),
        ("sm_count", c_uint),
        ("min_partition", c_uint),
        ("alignment", c_uint),
        ("rest", ctypes.c_ubyte * 36),
    ]


assert ctypes.sizeof(_SmResource) == 144


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which the driver takes by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


@dataclass(frozen=True, slots=True)
class GreenContext:
    """sm_count: multiprocessors granted. stream: a stream whose work stays on them. context: to
    be made current instead. handle: the green context itself."""

    sm_count: int
    stream: int
    context: int
    handle: int


class Driver:
    """The driver of one device; its primary context must exist (torch makes it).

    library: where the driver's functions are; None: the system's. Every call raises DriverError.
    """

    def __init__(self, library: Any = None, index: int = 0) -> None:
        """Raises OSError where there is no driver."""
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._call("cuInit", c_uint(0))
        self._device = c_int()
        self._call("cuDeviceGet", byref(self._device), c_int(index))

    def version(self) -> str:
        """Of CUDA, the newest that the driver supports."""
        number = c_int()
        self._call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def split(self, sm_count: int) -> list[GreenContext]:
        """Two green contexts: of at least `sm_count` multiprocessors, and of all others."""
        return [self._create(part) for part in self._halves(sm_count)]

    def first(self, sm_count: int) -> GreenContext:
        """A green context of the first multiprocessors, at least `sm_count`."""
        return self._create(self._halves(sm_count)[0])

    def rest(self, sm_count: int) -> GreenContext:
        """One of all multiprocessors but those of `first(sm_count)`."""
        return self._create(self._halves(sm_count)[1])

    def destroy(self, green: GreenContext) -> None:
        """Its stream must be idle."""
        self._call("cuStreamDestroy_v2", c_void_p(green.stream))
        self._call("cuGreenCtxDestroy", c_void_p(green.handle))

    def push(self, green: GreenContext) -> None:
        """Make it this thread's current context."""
        self._call("cuCtxPushCurrent_v2", c_void_p(green.context))

    def pop(self) -> None:
        """Make the context before `push` the current one again."""
        before = c_void_p()
        self._call("cuCtxPopCurrent_v2", byref(before))

    def allocation(self, address: int) -> tuple[int, int]:
        """First address and bytes of the allocation that `address` lies in."""
        base, num_bytes = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(num_bytes), c_uint64(address))
        return base.value, num_bytes.value

    def handle(self, base: int) -> bytes:
        """By which another process can map the allocation that begins at `base`."""
        handle = IpcHandle()
        self._call("cuIpcGetMemHandle", byref(handle), c_uint64(base))
        return bytes(handle)

    def open_handle(self, handle: bytes) -> int:
        """Map an allocation of another process, once a process; its address here."""
        address = c_uint64()
        given = IpcHandle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", byref(address), given, c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def _halves(self, sm_count: int) -> tuple[_SmResource, _SmResource]:
        whole, first, rest = _SmResource(), _SmResource(), _SmResource()
        groups = c_uint(1)
        self._call("cuDeviceGetDevResource", self._device, byref(whole), c_int(_SM_RESOURCE))
        self._call(
            "cuDevSmResourceSplitByCount",
            byref(first),
            byref(groups),
            byref(whole),
            byref(rest),
            c_uint(0),
            c_uint(sm_count),
        )
        return first, rest

    def _create(self, resource: _SmResource) -> GreenContext:
        descriptor, handle, stream, context = (c_void_p() for _ in range(4))
        self._call("cuDevResourceGenerateDesc", byref(descriptor), byref(resource), c_uint(1))
        self._call(
            "cuGreenCtxCreate", byref(handle), descriptor, self._device, c_uint(_DEFAULT_STREAM)
        )
        self._call("cuGreenCtxStreamCreate", byref(stream), handle, c_uint(_NON_BLOCKING), c_int(0))
        self._call("cuCtxFromGreenCtx", byref(context), handle)
        values = (stream.value, context.value, handle.value)
        return GreenContext(resource.sm_count, *(value or 0 for value in values))

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as missing:
            raise DriverError(f"{name} is not in this driver") from missing
        code = function(*arguments)
        if code:
            raise DriverError(f"{name}: {self._name_of(code)}")

    def _name_of(self, code: int) -> str:
        name = c_char_p()
        self._library.cuGetErrorName(c_int(code), byref(name))
        return f"{(name.value or b'unknown error').decode()} ({code})"
