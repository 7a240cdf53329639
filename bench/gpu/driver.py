"""Green contexts through the CUDA driver API (12.4 and later), by ctypes."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

_SM_RESOURCE = 1
_DEFAULT_STREAM = 1
_NON_BLOCKING = 1


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


@dataclass(frozen=True, slots=True)
class GreenContext:
    """sm_count: multiprocessors granted. stream: a stream whose work stays on them. context: to
    be made current instead. handle: the green context itself."""

    sm_count: int
    stream: int
    context: int
    handle: int


class Driver:
    """The driver of device 0; its primary context must exist (torch makes it).

    library: where the driver's functions are; None: the system's.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._call("cuInit", c_uint(0))
        self._device = c_int()
        self._call("cuDeviceGet", byref(self._device), c_int(0))

    def version(self) -> str:
        """Of CUDA, the newest that the driver supports."""
        number = c_int()
        self._call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def split(self, sm_count: int) -> list[GreenContext]:
        """Two green contexts: of at least `sm_count` multiprocessors, and of all others."""
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
        return [self._create(part) for part in (first, rest)]

    def destroy(self, green: GreenContext) -> None:
        self._call("cuStreamDestroy_v2", c_void_p(green.stream))
        self._call("cuGreenCtxDestroy", c_void_p(green.handle))

    def push(self, green: GreenContext) -> None:
        """Make it this thread's current context."""
        self._call("cuCtxPushCurrent_v2", c_void_p(green.context))

    def pop(self) -> None:
        before = c_void_p()
        self._call("cuCtxPopCurrent_v2", byref(before))

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
